"""The output of a run: the lines of the command, and one HTML page."""
