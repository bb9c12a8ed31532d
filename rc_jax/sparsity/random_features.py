"""Random features of softmax's kernel: φ(q)·φ(k) is an unbiased estimate of e^{q·k}, positive or trigonometric."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import working_dtype
from rc_jax._numerics.jax_names import canonical_dtype
from rc_jax.sparsity import inputs

_VECTORS = (inputs.rows("coordinates"), arguments.real)


@arguments.guard(dtype=arguments.floating_dtype)
def random_projections(
    key: Key[Array, ""], count: int, dim: int, *, orthogonal: bool = False, dtype: Any = jnp.float32
) -> Float[Array, "count dim"]:
    r"""Random directions w₁ … w_m, each N(0, I): independent, or orthogonal within blocks of `dim`.

    In a block the directions are the orthonormalised rows of a Gaussian matrix and the lengths are independent with
    the law of √χ²_d, so that every single w is N(0, I) in both cases. The last block may be incomplete.

    Args:
        key: A typed key; the same key gives the same directions.
        count: Number m of directions; static.
        dim: Number d of coordinates; static.
        orthogonal: Whether directions of one block are orthogonal.
        dtype: Floating-point dtype of the result.

    Returns:
        The directions, one a row.

    Source: Choromanski et al. 2021, "Rethinking attention with Performers", orthogonal random features.

    Example:
        >>> import jax
        >>> from rc_jax import sparsity
        >>> w = sparsity.random_projections(jax.random.key(0), 3, 4, orthogonal=True)
        >>> print(w.shape, bool(abs(w[0] @ w[1]) < 1e-6))
        (3, 4) True
    """
    dtype = canonical_dtype(dtype)
    working = working_dtype(dtype)
    if not orthogonal:
        return jax.random.normal(key, (count, dim), working).astype(dtype)
    return _orthogonal(key, int(count), int(dim), jnp.dtype(working)).astype(dtype)


@functools.partial(jax.jit, static_argnames=("count", "width", "dtype"))
def _orthogonal(key: Array, count: int, width: int, dtype: Any) -> Array:
    shape = (-(-count // width), width, width)
    normals, others = (jax.random.normal(jax.random.fold_in(key, role), shape, dtype) for role in range(2))
    # Orthonormal rows of each block, with the signs that Gram and Schmidt give them, times the lengths of other rows.
    q, r = jnp.linalg.qr(jnp.swapaxes(normals, 1, 2))
    rows = jnp.swapaxes(q * jnp.sign(jnp.diagonal(r, axis1=1, axis2=2))[:, None], 1, 2)
    return (rows * jnp.linalg.norm(others, axis=-1, keepdims=True)).reshape(-1, width)[:count]


@arguments.guard(x=_VECTORS)
def trigonometric_random_features(
    key: Key[Array, ""], x: Float[Array, "*batch width"], count: int, *, orthogonal: bool = False
) -> Float[Array, "..."]:
    r"""Trigonometric random features: φ(x) = e^{‖x‖²/2}/√m · (cos w_i·x, sin w_i·x), so that E φ(q)·φ(k) = e^{q·k}.

    φ(q)·φ(k) can be negative: a row of such weights is not a distribution, and its sum can vanish.

    Args:
        key: A typed key, which stands for the directions w.
        x: Queries or keys, scaled so that q·k is the logit; leading axes are a batch.
        count: Number m of directions, half the number of features; static.
        orthogonal: Whether the directions are orthogonal in blocks (`random_projections`).

    Returns:
        The 2m features, all cosines first, in the dtype of `x`.

    Source: Rahimi & Recht 2007; for softmax in Choromanski et al. 2021.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> x = jnp.array([[0.3, -0.2], [0.1, 0.4]])
        >>> features = sparsity.trigonometric_random_features(jax.random.key(0), x, 4096)
        >>> print(features.shape, bool(abs(features[0] @ features[1] - jnp.exp(x[0] @ x[1])) < 0.03))
        (2, 8192) True
    """
    angles, half, dtype = _exponents(key, x, count, orthogonal)
    waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    return (jnp.exp(half) / count**0.5 * waves).astype(dtype)


def _exponents(key: Array, x: Any, count: int, orthogonal: bool) -> tuple[Array, Array, Any]:
    """w_i·x, ‖x‖²/2 and the dtype of the result."""
    x = jnp.asarray(x)
    values = x.astype(working_dtype(x.dtype))
    w = random_projections(key, count, x.shape[-1], orthogonal=orthogonal, dtype=values.dtype)
    half = jnp.sum(jnp.square(values), axis=-1, keepdims=True) / 2
    return jnp.matmul(values, w.T, precision="highest"), half, x.dtype
