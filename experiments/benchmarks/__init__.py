"""How fast, against what: `python -m experiments.benchmarks [NAME …]`.

Every benchmark is a contest between ways of computing the same numbers (checked first), run in turns on one machine so
that a slow minute hits all of them, and reported as medians, quartiles and ratios beside what the machine can do.
"""
