"""Times of calls taken in turns, so that a slow minute hits all of them alike."""

from collections.abc import Callable, Mapping

import jax
import numpy as np

from experiments.benchmarks import contest


def quartiles(calls: Mapping[str, Callable[[], jax.Array]], seconds: float, least: int) -> dict[str, np.ndarray]:
    """Quartiles of each call's seconds, over about `seconds` and at least `least` rounds; each is compiled first."""

    def side(call: Callable[[], jax.Array]) -> contest.Side:
        def run() -> np.ndarray:
            call().block_until_ready()
            return np.zeros(1)  # the sides need not agree: they are parts of one computation

        return run

    sides = {name: side(call) for name, call in calls.items()}
    turns = contest.Contest("", "calls/s", 1, sides, next(iter(sides)))
    timed = contest.run(turns, seconds, least=least, most=400)
    return {name: np.quantile(timed.seconds[name], (0.25, 0.5, 0.75)) for name in calls}
