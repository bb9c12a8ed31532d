"""Means over random rows in a stream: stratified pairs, the largest score integrated out, unbiased standard errors."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rc_jax._numerics import stable
from rc_jax.scale.simulated.random_rows import SPACINGS, Row, bulk, inside, make_row
from rc_jax.scale.simulated.score_distribution import ScoreLaw

TOPS = 16
PAIRS = 16  # in one vectorised step


def log_stratified(uniform: jax.Array) -> jax.Array:
    """Logarithms of numbers uniform on (0, 1), one in each of as many equal strata as numbers are given."""
    count = uniform.size
    return jnp.log(inside((jnp.arange(count, dtype=uniform.dtype) + uniform) / count))


def mean_over_rows(
    function: Callable[[Row], jax.Array],
    key: jax.Array,
    law: ScoreLaw,
    n: jax.Array,
    samples: jax.Array,
    draw_log_parts: Callable[[jax.Array], jax.Array] = log_stratified,
    power: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Mean of function(row) and its standard error; memory grows neither with n nor with `samples`.

    A row has `TOPS` candidates for its largest score, by default one in each stratum of its law given the others;
    `function` takes the average over them. Rows come in pairs. The second score of both rows of a pair is the quantile
    of a level in (0, 1), which lies in the same one of samples/2 equal strata (an odd number is rounded up). The two
    rows share nothing else. So the sum of (a − b)²/4 over pairs estimates the variance of the sum of their means
    without bias. A `power` above 1 draws more rows with a high second score: 1 − level is that power of a uniform
    number, and each row has the weight that corrects for it.
    """
    strata = (samples + 1) // 2
    rest = bulk(law, n)

    def row(i: jax.Array) -> jax.Array:
        """The function's value on row i, from its own random numbers."""
        numbers = inside(jax.random.uniform(jax.random.fold_in(key, i), (1 + TOPS + SPACINGS,), law.step.dtype))
        uniform = inside(((i // 2).astype(numbers.dtype) + numbers[0]) / strata)
        second = -jnp.log(uniform) if power is None else -jnp.log1p(-(uniform**power))
        drawn = make_row(law, rest, n, second, draw_log_parts(numbers[1 : TOPS + 1]), numbers[TOPS + 1 :])
        return function(drawn) if power is None else power * uniform ** (power - 1) * function(drawn)

    def add(step: jax.Array, carry: Any) -> Any:
        """Add the means and the squared half differences of `PAIRS` pairs; the last step has fewer."""
        stratum = PAIRS * step + jnp.arange(PAIRS)
        values = jax.vmap(row)(jnp.concatenate([2 * stratum, 2 * stratum + 1]))
        one, other = values[:PAIRS], values[PAIRS:]
        counts = jnp.expand_dims(stratum < strata, tuple(range(1, one.ndim)))
        parts = ((one + other) / 2, (one - other) ** 2 / 4)
        sums = [jnp.where(counts, new, 0).sum(0) for new in parts]
        return [stable.compensated(old, new) for old, new in zip(carry, sums, strict=True)]

    # Sums of the means of pairs and of their squared half differences.
    shape = jax.eval_shape(row, jnp.zeros((), int))
    zero = jnp.zeros(shape.shape, shape.dtype)
    total, square = jax.lax.fori_loop(0, (strata + PAIRS - 1) // PAIRS, add, [(zero, zero), (zero, zero)])
    return total[0] / strata, jnp.sqrt(square[0]) / strata
