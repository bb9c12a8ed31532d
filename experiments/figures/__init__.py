"""The figures: one module each, found by name, needing no registration."""
