"""The output of a run: pictures, the lines of the command, and one HTML page."""
