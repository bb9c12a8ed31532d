"""Thousands of random initialisations: batched, and shared among devices and processes.

`run(fn, key, count)` maps a pure function over as many random keys and returns its samples as arrays (count, …).
"""

from rc_jax.ensemble.runner import run

__all__ = ["run"]
