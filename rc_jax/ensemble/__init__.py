"""Thousands of random initialisations: batched, shared among devices, reduced to statistics on the way.

`run(fn, key, count)` maps a pure function of a key to its `Statistics`; `merge` puts two together.
"""

from rc_jax.ensemble.runner import run
from rc_jax.ensemble.statistics import Statistics, merge

__all__ = ["Statistics", "merge", "run"]
