"""Speed, against what: `python -m experiments.benchmarks [NAME …]`, contests that are timed in turns."""
