"""The part `figure`: what a figure holds, the look of its plots, and the texts and checkpoints that it may read."""
