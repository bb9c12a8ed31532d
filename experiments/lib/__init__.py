"""What every figure needs: its parts, the look of its plots, texts and checkpoints to read, and its result on disk."""
