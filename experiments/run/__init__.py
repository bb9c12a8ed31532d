"""One run of the figures: what it was asked for, what a result is named by, and where results are computed and kept."""
