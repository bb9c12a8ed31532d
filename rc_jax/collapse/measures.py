"""Residual, sizes and ranks of a token matrix, safe from the underflow of squares."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rc_jax._numerics import arguments

Center = Literal["mean", "median", "argmin"]

_TOKENS = arguments.float_array("token", "feature", token=1, feature=1)
_STEPS, _TILT = 2000, 0.3


def over_largest(x: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, ""]]:
    """`x` over its largest magnitude, and that magnitude, both kept where a reciprocal neither over- nor underflows."""
    limits = jnp.finfo(x.dtype)
    size = jax.lax.stop_gradient(jnp.clip(jnp.max(jnp.abs(x)), limits.tiny, limits.max / 16))
    return x / size, size


def _for_sums(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Half precision as float32, in which sums of many numbers neither overflow nor stand still."""
    return x.astype(x.dtype if x.dtype.itemsize >= 4 else jnp.float32)


def _times(size: Float[Array, ""], number: Float[Array, ""]) -> Float[Array, ""]:
    """The product in the dtype of `size`."""
    return (size.astype(number.dtype) * number).astype(size.dtype)


def _root(x: Float[Array, ""]) -> Float[Array, ""]:
    """√x, with derivative 0 at 0."""
    return jnp.where(x == 0, 0, jnp.sqrt(jnp.where(x == 0, 1, x)))


@arguments.guard(x=_TOKENS)
def norm_1inf(x: Float[Array, "token feature"]) -> Float[Array, ""]:
    """‖X‖_{1,∞} = √‖X‖₁·√‖X‖_∞, with ‖·‖₁ the largest column sum and ‖·‖_∞ the largest row sum of |X|.

    The size that DCL21 (section 2) measures residuals by. It is not a norm: the triangle inequality fails. The roots
    are taken before the product, which would underflow first. Its gradient at X = 0 is 0.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(norm_1inf(jnp.array([[1.0, -2.0], [0.0, 2.0]]))), 5)  # √4 · √3
        3.4641
    """
    unit, size = over_largest(x)
    magnitude = jnp.abs(_for_sums(unit))
    return _times(size, _root(jnp.max(jnp.sum(magnitude, axis=0))) * _root(jnp.max(jnp.sum(magnitude, axis=1))))


@arguments.guard(x=_TOKENS)
def frobenius(x: Float[Array, "token feature"]) -> Float[Array, ""]:
    """‖X‖_F = √Σ x², without overflow or underflow of the squares; its gradient at X = 0 is 0.

    Example:
        >>> import jax.numpy as jnp
        >>> bool(frobenius(jnp.array([[3e-30, 4e-30]])) > 4.9e-30)
        True
    """
    unit, size = over_largest(x)
    return _times(size, _root(jnp.sum(jnp.square(_for_sums(unit)))))


@arguments.guard(x=_TOKENS)
def diameter(x: Float[Array, "token feature"]) -> Float[Array, ""]:
    """diam(X) = max over pairs of tokens of ‖x_i − x_j‖₂, from the differences themselves.

    Example:
        >>> import jax.numpy as jnp
        >>> float(diameter(jnp.array([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]])))
        5.0
    """
    size = over_largest(x - x[:1])[1]  # of the differences: their squares may underflow beside a large common part

    def farthest(token: Array) -> Array:
        return jnp.max(jnp.sum(jnp.square((x - token[None]) / size), axis=1))

    return size * _root(jnp.max(jax.lax.map(farthest, x, batch_size=32)))


@arguments.guard(x=_TOKENS)
def stable_rank(x: Float[Array, "token feature"]) -> Float[Array, ""]:
    """‖X‖_F²/‖X‖₂² = Σ s²/max s² over the singular values s: between 1 and the rank; 0 for X = 0.

    Example:
        >>> import jax.numpy as jnp
        >>> float(stable_rank(jnp.diag(jnp.array([2.0, 1.0]))))
        1.25
    """
    return jnp.sum(jnp.square(_relative_spectrum(x))).astype(x.dtype)


@arguments.guard(x=_TOKENS)
def effective_rank(x: Float[Array, "token feature"]) -> Float[Array, ""]:
    """exp(−Σ p log p), p = s/Σs over the singular values s: between 1 and the rank (Roy & Vetterli 2007); 0 for X = 0.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(effective_rank(jnp.eye(3))), 5)
        3.0
    """
    spectrum = _relative_spectrum(x)
    total = jnp.sum(spectrum)
    share = spectrum / jnp.where(total == 0, 1, total)
    entropy = -jnp.sum(share * jnp.log(jnp.where(share > 0, share, 1)))
    return jnp.where(total == 0, 0, jnp.exp(entropy)).astype(x.dtype)


def _relative_spectrum(x: Float[Array, "token feature"]) -> Float[Array, " rank"]:
    """The singular values over the largest one; all 0 for a matrix of zeros. Half precision is computed in float32."""
    unit = over_largest(x)[0]
    spectrum = jnp.linalg.svd(_for_sums(unit), compute_uv=False)
    return spectrum / jnp.where(spectrum[0] == 0, 1, spectrum[0])


@arguments.guard(x=arguments.tokens)
def residual(x: Float[Array, "token feature"], center: Center = "mean") -> Float[Array, "token feature"]:
    """res(X) = X − 1cᵀ, the tokens minus their common part c = argmin ‖X − 1cᵀ‖.

    The minimiser depends on the norm (DCL21, section 2, leaves it open, and the authors' code takes the mean for all):

        mean     column means: the minimiser in the Frobenius norm
        median   column medians: a minimiser in the column-wise ℓ₁ norm
        argmin   the minimiser in √(‖·‖₁‖·‖_∞), by a numerical search from five starts. The norm may have several
                 minima; the search finds one to about 3e-5, in each of 2400 random skewed inputs the least one to
                 1e-4, and nothing above the norm about the mean, the median or the middle of each column.
                 Derivatives take c − mean as constant

    All three are unchanged by X → X + 1vᵀ, to rounding.

    Args:
        x: at least two tokens.
        center: the name of the common part.

    Example:
        >>> import jax.numpy as jnp
        >>> residual(jnp.array([[1.0, 5.0], [3.0, 5.0]])).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """
    if center == "median":
        return x - jnp.median(x, axis=0, keepdims=True)
    once = x - jnp.mean(x, axis=0, keepdims=True)
    # The first mean has a rounding error of the size of x; the second mean removes it.
    centred = once - jnp.mean(once, axis=0, keepdims=True)
    return centred if center == "mean" else centred - jax.lax.stop_gradient(_offset_1inf(centred))[None]


@jax.jit
def _offset_1inf(x: Float[Array, "token feature"]) -> Float[Array, " feature"]:
    """The c that minimises norm_1inf(x − 1cᵀ), by Adam from five starts with a step that shrinks to zero.

    The norm is √(AB) of two convex functions of c, ‖·‖₁ and ‖·‖_∞, and may have several minima. From the mean, the
    median and the middle of each column the search is on log AB. Two more begin with the convex log(A e^t + B e^(−t))
    for a t on either side of A e^t = B e^(−t): the least norm is that of such a minimum for some t.

    Both are piecewise smooth, so the best iterate is returned, not the last one.
    """
    # The problem is brought to size 1.
    import optax  # a tenth of a second, which only this needs

    size = jnp.max(jnp.abs(x))
    x = x / jnp.where(size > 0, size, 1)

    def log_sizes(c: Array) -> tuple[Array, Array]:
        magnitude = jnp.abs(_for_sums(x - c[None]))
        a, b = (jnp.max(jnp.sum(magnitude, axis=axis)) for axis in (0, 1))
        tiny = jnp.finfo(magnitude.dtype).tiny
        return jnp.log(jnp.maximum(a, tiny)), jnp.log(jnp.maximum(b, tiny))

    def objective(c: Array, tilt: Array, convex: Array) -> tuple[Array, Array]:
        a, b = log_sizes(c)
        # The slope of log(A e^t + B e^(−t)) is the mean of those of log A and log B with this share.
        share = jnp.where(convex, jax.nn.sigmoid(2 * tilt + jax.lax.stop_gradient(a - b)), 0.5)
        return (share * a + (1 - share) * b).astype(x.dtype), a + b

    optimiser = optax.adam(optax.exponential_decay(0.05, _STEPS, 1e-4))
    middle = (jnp.max(x, axis=0) + jnp.min(x, axis=0)) / 2
    starts = jnp.stack([jnp.zeros_like(middle), jnp.median(x, axis=0), middle, middle, middle])
    a, b = log_sizes(starts[0])
    tilts = (b - a) / 2 + jnp.asarray([0, 0, 0, -_TILT, _TILT], a.dtype)

    def descend(start: Array, tilt: Array, convex_steps: Array) -> tuple[Array, Array]:
        def step(carry: tuple[Any, ...], index: Array) -> tuple[tuple[Any, ...], None]:
            c, state, best, best_value = carry
            slope, value = jax.grad(objective, has_aux=True)(c, tilt, index < convex_steps)
            improved = value < best_value
            best, best_value = jnp.where(improved, c, best), jnp.where(improved, value, best_value)
            update, state = optimiser.update(slope, state)
            return (optax.apply_updates(c, update), state, best, best_value), None

        first = (start, optimiser.init(start), start, jnp.asarray(jnp.inf, a.dtype))
        (_, _, best, value), _ = jax.lax.scan(step, first, jnp.arange(_STEPS))
        return best, value

    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
        candidates, values = jax.vmap(descend)(starts, tilts, jnp.asarray([0, 0, 0, _STEPS // 3, _STEPS // 3]))
    return candidates[jnp.argmin(values)] * size
