"""The true mean of softmax's gradient, of its logarithm, and the scale that maximises the latter, by simulation."""

import functools
import math

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common, common_with_dim, converted
from rc_jax._numerics.roots import MAX_STEPS, bracketed
from rc_jax.scale.results import Optimum
from rc_jax.scale.simulated.averages import mean_over_rows
from rc_jax.scale.simulated.random_rows import Row, even_batch, log_gradient, near_ties
from rc_jax.scale.simulated.score_distribution import ROW_CHECKS, score_law

SCALES_TOGETHER = 8  # in one vectorised step over rows


@arguments.guard(alpha=arguments.positive, **ROW_CHECKS)
def expected_objective(
    key: Key[Array, ""], alpha: ArrayLike, n: int, dim: ArrayLike | None = None, samples: int = 1024
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Mean softmax gradient of n random scores at scale α, without the annealed approximation.

    Formula: E α(1 − Σp²), p = softmax(αs), over independent scores s. For Gaussian scores it equals E Σ p s and rises
    with α towards E max s: it has no finite maximiser.

    The largest score of a row is integrated out in 16 strata and the second is stratified over pairs of rows. Near the
    best scale this divides the variance of plain rows by some 20; the standard error is the true one. At large α the
    mean comes from rows whose two largest scores are within 1/α of each other. The strata are drawn there, so that the
    error stays as small up to the largest α, where the mean is at its limit, the density of that difference at 0.
    Beyond n = 160 only the scores above a level that 64 exceed on average are drawn. The sums over the others have
    their exact means and covariances; the rest is below 1e-4 of the result. Neither n nor `samples` costs memory.
    Derivatives in α and `dim` exist in forward mode only (`jax.jvp`, `jax.jacfwd`): the loop over rows has no reverse.

    Args:
        key: one typed key; pair i of rows uses `fold_in(key, i)`, so that every α sees the same random numbers.
        alpha: α > 0, any shape.
        n: number of scores, at least 2.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of vectors whose cosines are the scores; may be traced.
        samples: number of rows, at least 2; an odd number is rounded up.

    Returns:
        (mean, standard error), each in alpha's shape and dtype.

    Source: the identity is that of the random-energy model (Derrida 1981), for the objective of kexue.fm/archives/9812.

    Example:
        >>> import jax
        >>> from rc_jax.scale import expected_objective
        >>> mean, error = expected_objective(jax.random.key(0), 2.0, 64, samples=256)
        >>> print(abs(mean - 1.679) < 5 * error)
        True
    """
    return _mean_of(key, alpha, n, dim, samples, logarithm=False)


@arguments.guard(alpha=arguments.positive, **ROW_CHECKS)
def typical_objective(
    key: Key[Array, ""], alpha: ArrayLike, n: int, dim: ArrayLike | None = None, samples: int = 1024
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Mean logarithm of the softmax gradient of n random scores at scale α: what a typical row lets through.

    Formula: E log α(1 − Σp²), p = softmax(αs), over independent scores s. Unlike the mean itself it has a finite
    maximiser, `typical_optimum`. e to the power of the difference between two scales is the ratio of the geometric
    means of their gradients over rows.

    Rows, arguments, variance and cost as in `expected_objective`.

    Returns:
        (mean in nats, standard error), each in alpha's shape and dtype.

    Source: this package's own, for the gradient of kexue.fm/archives/9812.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax.scale import typical_objective
        >>> mean, _ = typical_objective(jax.random.key(0), jnp.array([1.0, 3.0, 9.0]), 64, samples=256)
        >>> print(mean.argmax())  # α* = 2.9
        1
    """
    return _mean_of(key, alpha, n, dim, samples, logarithm=True)


@arguments.guard(**ROW_CHECKS)
def typical_scale(key: Key[Array, ""], n: int, dim: ArrayLike | None = None, samples: int = 256) -> Float[Array, ""]:
    """The scale α that maximises the mean logarithm of the softmax gradient of n random scores.

    Formula: argmax_α E log[α(1 − Σp²)], p = softmax(αs); finite, near √(2 log n) for Gaussian scores. The mean is over
    `samples` rows, the same at every α, drawn as `expected_objective` draws them: n = 2²⁰ costs as much as n = 1000.
    The derivative in `dim` exists in forward mode only.

    Args:
        key: one typed key; pair i of rows uses `fold_in(key, i)`.
        n: number of scores, at least 2.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of the vectors whose cosines are the scores. Its dtype,
            where it has one, is the working precision. May be traced.
        samples: number of rows, at least 2; an odd number is rounded up.

    Returns:
        The maximiser, NaN where `typical_optimum` says that the search did not end.

    Source: this package's own, for the gradient of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> import jax
        >>> from rc_jax.scale import typical_scale
        >>> print(2 < typical_scale(jax.random.key(0), 64, samples=64) < 4)  # √(2 log 64) = 2.88
        True
    """
    optimum = typical_optimum(key, n, dim, samples)
    return jnp.where(optimum.converged, optimum.scale, jnp.nan)


@arguments.guard(**ROW_CHECKS)
def typical_optimum(key: Key[Array, ""], n: int, dim: ArrayLike | None = None, samples: int = 256) -> Optimum:
    """`typical_scale` with its standard error (first order in 1/√samples), the maximum (nats) and the search's end.

    Source: this package's own.

    Example:
        >>> import jax
        >>> from rc_jax.scale import typical_optimum
        >>> print(typical_optimum(jax.random.key(0), 64, samples=64).converged)
        True
    """
    dtype, (size,), dim = common_with_dim(dim, n=n)
    scale, value, converged, error = _typical(key, dim, size, jnp.asarray(samples))
    return Optimum(scale.astype(dtype), value.astype(dtype), converged, error.astype(dtype))


def _mean_of(
    key: Array, alpha: ArrayLike, n: int, dim: ArrayLike | None, samples: int, *, logarithm: bool
) -> tuple[Array, Array]:
    """Mean of the gradient or of its logarithm, with the arguments brought to the dtype of α."""
    dtype, (alpha,) = as_common(alpha=alpha)
    dim = None if dim is None else converted("dim", dim, alpha.dtype)
    mean, error = _simulated(key, alpha, dim, converted("n", n, alpha.dtype), jnp.asarray(samples), logarithm)
    return mean.astype(dtype), error.astype(dtype)


@functools.partial(jax.jit, static_argnames="logarithm")
def _simulated(
    key: jax.Array, alpha: jax.Array, dim: jax.Array | None, n: jax.Array, samples: jax.Array, logarithm: bool
) -> tuple[jax.Array, jax.Array]:
    """Mean of the gradient, or of its logarithm, and its standard error, for every α over the same rows."""
    law = score_law(n, dim)
    # Beyond α = (largest number)^¾ the mean no longer changes, and the mean logarithm falls like α. The latter is taken
    # in units of α, because its square would overflow.
    within = jnp.minimum(alpha, float(jnp.finfo(alpha.dtype).max) ** 0.75)
    unit = jnp.maximum(within, 1) if logarithm else jnp.ones_like(alpha)

    batch = even_batch(alpha.size, SCALES_TOGETHER)

    def at(alpha: jax.Array, unit: jax.Array, row: Row) -> jax.Array:
        if logarithm:
            return (log_gradient(row, alpha) / unit).mean()
        row, log_weight = near_ties(law, row, alpha)
        return jnp.exp(log_gradient(row, alpha) + log_weight).mean()

    def objective(row: Row) -> jax.Array:
        return jax.lax.map(lambda pair: at(pair[0], pair[1], row), (within.ravel(), unit.ravel()), batch_size=batch)

    # At large α a row contributes the density of scores at its second one over the tail V there, V^(−2/(d−1)) for
    # cosines. 1 − level is like V² for small V, so this power makes rows contribute alike. Without it the variance is
    # infinite for d = 3; from d = 5 on weights cost more than they bring.
    power = None if logarithm or dim is None else jnp.where(dim < 5, (dim - 1) / (dim - 2), 1)
    mean, error = mean_over_rows(objective, key, law, n, samples, power=power)
    unit = unit * (alpha / within) if logarithm else unit
    return mean.reshape(alpha.shape) * unit, error.reshape(alpha.shape) * unit


@jax.jit
def _typical(
    key: jax.Array, dim: jax.Array | None, n: jax.Array, samples: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """α*, the maximum, whether the search ended, and the standard error of α*.

    Newton's steps stay in a bracket, as in `rising_root`. Each pass over the rows gives value, slope and second
    derivative in u = log α. The standard error of α* is α* times that of the slope over the second derivative.
    """
    dtype = n.dtype
    law = score_law(n, dim)
    enough = 0.1 * float(jnp.finfo(dtype).eps) ** 0.5

    def unfinished(state: tuple[jax.Array, ...]) -> jax.Array:
        return ~state[3] & (state[4] < MAX_STEPS)

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        u, low, high, _, count, _, _ = state
        mean, error = mean_over_rows(functools.partial(_derivatives, u), key, law, n, samples)
        new, low, high = bracketed(u, -mean[1], -mean[2], low, high)
        return new, low, high, jnp.abs(new - u) < enough, count + 1, mean, error

    # Start at the critical scale, √(2 log n) times the inverse deviation of a score. With more cosines than few
    # dimensions have room for, the annealed optimum is 2 (2Cn/(d + 1))^(2/(d−1)), with E e^{α cos} → C e^α/α^((d−1)/2).
    start = 0.5 * jnp.log(2 * jnp.log(n))
    if dim is not None:
        room = gammaln(dim / 2) + (dim / 2 - 1) * math.log(2) - math.log(2 * math.pi) / 2
        few = math.log(2) + 2 / (dim - 1) * (room + jnp.log(n) + math.log(2) - jnp.log(dim + 1))
        start = jnp.where(dim < 2 * jnp.log(n), few, start + 0.5 * jnp.log(dim))
    infinite, zero = jnp.full((), jnp.inf, dtype), jnp.zeros((3,), dtype)
    state = (start, -infinite, infinite, jnp.zeros((), bool), jnp.zeros((), jnp.int32), zero, zero)
    u, _, _, done, _, mean, error = jax.lax.while_loop(unfinished, step, state)
    done &= jnp.isfinite(u)
    scale = jnp.where(done, jnp.exp(u), jnp.nan)
    return scale, mean[0], done, scale * error[1] / -mean[2]


def _derivatives(u: jax.Array, row: Row) -> jax.Array:
    """Mean logarithm of the gradient at α = e^u over the largest score, its slope and its second derivative in u."""

    def value(u: jax.Array) -> jax.Array:
        return log_gradient(row, jnp.exp(u))

    def slope(u: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.jvp(value, (u,), (jnp.ones_like(u),))

    (log_value, rate), (_, bend) = jax.jvp(slope, (u,), (jnp.ones_like(u),))
    return jnp.stack([log_value, rate, bend]).mean(1)
