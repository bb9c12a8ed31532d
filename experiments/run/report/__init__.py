"""What a run shows: its progress, pictures, the lines of the command, and one HTML page."""
