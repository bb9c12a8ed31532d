"""S of given weights, the ratio of norms of a feature vector, and S from two moments that are known."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common, working_dtype

check_weights = (
    arguments.must(
        "a floating-point array with at least one entry and one axis",
        lambda value: value.ndim and value.size,
        right=lambda value: isinstance(value, jax.Array | np.ndarray) and jnp.issubdtype(value.dtype, jnp.floating),
    ),
    arguments.real,
)


check_axis = arguments.integer(None)


@arguments.guard(a=check_weights, axis=check_axis)
def sparsity(a: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    r"""Sparsity of weights: mean magnitude over root mean square, smaller is sparser.

    S(a) = E|a| / √E a² lies between 1/√n (one entry holds everything) and 1 (all magnitudes equal). It does not change
    when `a` is multiplied by a number, so the weights need no normalisation and may be negative. Rows are divided by
    their largest magnitude first: nothing overflows or underflows.

    A row of zeros gets S = 1. Every constant row (c, …, c) has S = 1 and this is its limit c → 0; a row that looks at
    nothing is not counted as focused. The gradient there is 0.

    Args:
        a: Weights of any shape.
        axis: The axis of the n weights.

    Returns:
        S, with `axis` removed; a pure number.

    Source: Su Jianlin, kexue.fm/archives/9889, the definition of sparsity.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> even, single = sparsity.sparsity(jnp.array([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]))
        >>> print(f"{even:.6f} {single:.6f}")
        1.000000 0.500000
    """
    return of_rows(_sparsity, "a", a, axis)


@jax.jit
def _sparsity(a: Array) -> Array:
    return 1 / jnp.sqrt(1 + jnp.mean(jnp.square(over_mean(a)[1]), axis=-1))  # never above 1


@arguments.guard(q=check_weights, axis=check_axis)
def norm_ratio(q: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    r"""The unevenness ‖q‖₂/‖q‖₁ of a feature vector, between 1/√d (all equal) and 1 (a single entry).

    It is 1/(√d·S(q)) with S the sparsity of the d entries. A zero vector gets 1/√d, as constant vectors do.

    Args:
        q: Feature vectors of any shape.
        axis: The axis of the d features.

    Returns:
        The ratio, with `axis` removed; a pure number.

    Source: Su Jianlin, kexue.fm/archives/9889, where its maximum is given as √d; by ‖q‖₂ ≤ ‖q‖₁ it is 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> even, single = sparsity.norm_ratio(jnp.array([[3.0, 3.0, 3.0, 3.0], [0.0, 0.0, 2.0, 0.0]]))
        >>> print(f"{even:.6f} {single:.6f}")
        0.500000 1.000000
    """
    return of_rows(lambda rows: rows.shape[-1] ** -0.5 / _sparsity(rows), "q", q, axis)


@arguments.guard(first=arguments.bounded(0), second=arguments.positive)
def from_moments(first: ArrayLike, second: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of weights whose two moments are known: S = E|a|/√E a².

    Args:
        first: E|a| ≥ 0; any shape that broadcasts with `second`.
        second: E a² > 0, at least the square of `first` (eight roundings are allowed, and counted as S = 1).

    Returns:
        S, in the broadcast shape; a pure number.

    Raises:
        ValueError: they are moments of nothing, as first² > second.

    Source: Su Jianlin, kexue.fm/archives/9889, the definition of sparsity.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.from_moments(0.5, 1.0):.6f}")
        0.500000
    """
    dtype, (first, second) = as_common(first=first, second=second, positive=("second",))
    ratio = first / jnp.sqrt(second)
    numbers = arguments.at_hand(ratio)
    if numbers is not None and np.any(numbers.astype(float) > 1 + 8 * float(jnp.finfo(dtype).eps)):
        worst = int(np.argmax(numbers))
        pair = (float(jnp.ravel(value)[worst]) for value in (first, second))
        raise ValueError("`second` must be at least `first`², got {1:g} for first = {0:g}".format(*pair))
    inside = (first >= 0) & (second > 0) & (ratio <= 1 + 8 * float(jnp.finfo(dtype).eps))
    return jnp.where(inside, jnp.minimum(ratio, 1), jnp.nan).astype(dtype)


def of_rows(measure: Callable[..., Array], name: str, a: Array, axis: int, *more: ArrayLike) -> Array:
    """A measure of rows on the last axis, computed in float32 at least and returned in the dtype of `a`."""
    if not -a.ndim <= axis < a.ndim:
        raise ValueError(f"`axis` must name an axis of `{name}`, which has {a.ndim}, got axis={axis}")
    a = jnp.asarray(a)
    rows = jnp.moveaxis(a.astype(working_dtype(a.dtype)), axis, -1)
    return measure(rows, *(jnp.asarray(number, rows.dtype) for number in more)).astype(a.dtype)


def relative(a: Array) -> Array:
    """Magnitudes of rows over a power of 2 near their largest: powers stay in range, and no digit is lost.

    Rows of zeros are ones. No gradient flows through the divisor: of scale-free functions none is lost.
    """
    magnitude = jnp.abs(a)
    largest = lax.stop_gradient(jnp.max(magnitude, axis=-1, keepdims=True))
    empty = largest == 0
    _, exponent = jnp.frexp(jnp.where(empty, 1, largest))
    half = exponent // 2  # in two steps: 2^−exponent may underflow where these do not
    one = jnp.ones_like(largest)
    return jnp.where(empty, 1, magnitude * jnp.ldexp(one, -half) * jnp.ldexp(one, half - exponent))


def over_mean(a: Array) -> tuple[Array, Array]:
    """|a| over the mean of its row, and the deviation from 1 with all digits where a row is nearly even.

    The mean of the deviations is 0. Rows of zeros count as ones.
    """
    magnitude = relative(a)
    # What is taken off first has fewer digits than the dtype. A compiler may join the product that ends a mean with a
    # difference in one loop, and round it in another; a deviation from it would keep a rounding of the mean.
    mean = lax.stop_gradient(jnp.mean(magnitude, axis=-1, keepdims=True))
    mean = lax.reduce_precision(mean, jnp.finfo(a.dtype).nexp, jnp.finfo(a.dtype).nmant - 3)
    away = magnitude - mean
    off = jnp.mean(away, axis=-1, keepdims=True)
    return magnitude / (mean + off), (away - off) / (mean + off)
