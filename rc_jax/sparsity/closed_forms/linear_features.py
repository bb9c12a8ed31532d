"""Linear attention with non-negative features: weights a_j ∝ q̃·k̃_j, both vectors without negative entries."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments, stable
from rc_jax._numerics.dtypes import as_common, common_dtype, working_dtype
from rc_jax.sparsity import inputs
from rc_jax.sparsity.measures import norm_ratio

_KEYS = (arguments.float_array("token", "feature", token=1, feature=1), arguments.real)
_FEATURES = (inputs.rows("features"), *inputs.nonnegative_rows("features"))


def _covariance(name: str, value: Any) -> None:
    arguments.float_array("feature", "feature'")(name, value)
    if value.shape[0] != value.shape[1]:
        raise ValueError(f"`{name}` must be square, got {arguments.describe(value)}")
    arguments.real(name, value)
    numbers = arguments.at_hand(value)
    if numbers is None:
        return
    # Symmetric and positive semi-definite, up to rounding.
    matrix = numbers.astype(float)
    slack = 100 * len(matrix) * float(jnp.finfo(value.dtype).eps) * float(np.max(np.abs(matrix), initial=0))
    if not np.allclose(matrix, matrix.T, rtol=0, atol=slack):
        raise ValueError(
            f"`{name}` must be symmetric, got entries that differ by {np.max(np.abs(matrix - matrix.T)):g}"
        )
    least = float(np.linalg.eigvalsh(matrix)[0])
    if least < -slack:
        raise ValueError(f"`{name}` must be positive semi-definite, got smallest eigenvalue {least:g}")


@arguments.guard(features=_KEYS)
def feature_moments(features: Float[Array, "token feature"]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Mean and covariance of given keys' features: μ̃ = (1/n) Σ_j k̃_j, Σ̃ = (1/n) Σ_j (k̃_j − μ̃)(k̃_j − μ̃)ᵀ.

    With the factor 1/n, not 1/(n − 1), `nonnegative_linear` of these two is the sparsity of the row of weights q̃·k̃_j
    itself, whatever the features are, as long as none is negative: an identity, not an approximation. The covariance is
    exactly symmetric, and formed from centred features, so that a large common mean costs no digits.

    Args:
        features: Features k̃_j of n keys, one row each.

    Returns:
        Mean of shape (feature,) and covariance of shape (feature, feature), in the dtype of `features`. Features beyond
        the square root of that dtype's range overflow in the covariance; S does not see their scale, so divide first.

    Source: the moments in Su Jianlin, kexue.fm/archives/9889, linear attention, taken over the keys of one row.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> features, q = jnp.array([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0]]), jnp.array([1.0, 0.5])
        >>> mean, cov = sparsity.feature_moments(features)
        >>> print(f"{sparsity.nonnegative_linear(q, mean, cov):.6f} {sparsity.sparsity(features @ q):.6f}")
        0.904534 0.904534
    """
    features = jnp.asarray(features)
    values = features.astype(working_dtype(features.dtype))
    mean = jnp.mean(values, axis=0)
    mean = mean + jnp.mean(values - mean[None], axis=0)
    centred = values - mean[None]
    cov = jnp.matmul(centred.T, centred, precision="highest") / len(values)
    return mean.astype(features.dtype), ((cov + cov.T) / 2).astype(features.dtype)


@arguments.guard(q=_FEATURES, mean=_FEATURES, cov=_covariance)
def nonnegative_linear(
    q: Float[Array, "*batch feature"], mean: Float[Array, "..."], cov: Float[Array, "..."]
) -> Float[Array, "*batch"]:
    r"""Sparsity of linear attention with non-negative features: S = 1/√(1 + q̃ᵀΣ̃q̃/(q̃ᵀμ̃)²).

    The weights a_j ∝ q̃·k̃_j are non-negative, so E|a| is the mean and only the two first moments of the keys' features
    matter, whatever their distribution. The formula does not see a change of scale of q̃ or of the features.

    Args:
        q: Query features q̃ ≥ 0; leading axes are a batch.
        mean: Mean μ̃ ≥ 0 of the keys' features, shape (feature,).
        cov: Covariance Σ̃ of the keys' features, shape (feature, feature), symmetric and positive semi-definite.

    Returns:
        S for every query; a pure number.

    Raises:
        ValueError: `q` or `mean` has a row of zeros; they are orthogonal; `cov` is not symmetric and positive
            semi-definite.

    Source: Su Jianlin, kexue.fm/archives/9889, linear attention.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> q, mean, cov = jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0]), jnp.eye(2)
        >>> print(f"{sparsity.nonnegative_linear(q, mean, cov):.6f}")
        0.801784
    """
    if mean.ndim != 1 or mean.shape != q.shape[-1:] or cov.shape != mean.shape * 2:
        shapes = ", ".join(arguments.describe(value) for value in (q, mean, cov))
        raise ValueError(f"`q`, `mean` and `cov` must have shapes (..., d), (d,) and (d, d), got {shapes}")
    q, mean, cov = jnp.asarray(q), jnp.asarray(mean), jnp.asarray(cov)
    dtype = common_dtype(q, mean, cov)
    q, mean, cov = (value.astype(working_dtype(dtype)) for value in (q, mean, cov))
    first, s = _linear(q, mean, cov)
    overlap = arguments.at_hand(first)
    if overlap is not None and not np.all(overlap > 0):
        raise ValueError("`q` must overlap `mean`, got q·mean = 0: such weights are all zero")
    return jnp.where((first > 0) & _sees(q), s, jnp.nan).astype(dtype)


@jax.jit
def _linear(q: Array, mean: Array, cov: Array) -> tuple[Array, Array]:
    """q̃ᵀμ̃, relative, and S; by correlations and relative to the largest deviation, so that no square underflows."""
    unit, size = q / jnp.max(q, axis=-1, keepdims=True), jnp.max(mean)
    first = jnp.matmul(unit, mean / size, precision="highest")
    variances = jnp.diagonal(cov)
    most = jnp.max(variances)
    usual = jnp.where(most > 0, jnp.sqrt(most), size)
    deviations = lax.stop_gradient(jnp.where(variances > 0, jnp.sqrt(variances), usual))
    scaled = unit * jnp.broadcast_to(deviations / size, unit.shape)
    largest = lax.stop_gradient(jnp.max(scaled, axis=-1))
    scaled = scaled / largest[..., None]
    correlations = cov / deviations[:, None] / deviations[None, :]
    spread = jnp.maximum(jnp.sum(jnp.matmul(scaled, correlations, precision="highest") * scaled, axis=-1), 0)
    top = lax.stop_gradient(jnp.maximum(first, largest * jnp.sqrt(spread)))
    near, far = first / top, jnp.minimum(largest / top, float(jnp.finfo(q.dtype).max) ** 0.25)
    return first, near / jnp.sqrt(jnp.square(near) + jnp.square(far) * spread)


@arguments.guard(q=_FEATURES, mean=arguments.positive, deviation=arguments.bounded(0))
def nonnegative_linear_iid(
    q: Float[Array, "*batch feature"], mean: ArrayLike, deviation: ArrayLike
) -> Float[Array, "*batch"]:
    r"""`nonnegative_linear` for independent features of equal mean and deviation: S = 1/√(1 + (σ̃/μ̃·‖q̃‖₂/‖q̃‖₁)²).

    The last ratio lies in [1/√d, 1] (`norm_ratio`), so S lies between 1/√(1 + (σ̃/μ̃)²), for a query with a single
    feature, and 1/√(1 + (σ̃/μ̃)²/d): a wide query with even features cannot focus.

    Args:
        q: Query features q̃ ≥ 0; leading axes are a batch.
        mean: Mean μ̃ > 0 of each feature of a key; a number, or the shape of the batch.
        deviation: Standard deviation σ̃ ≥ 0 of each feature; a number, or the shape of the batch.

    Returns:
        S for every query; a pure number.

    Source: Su Jianlin, kexue.fm/archives/9889, linear attention with identically distributed features.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.nonnegative_linear_iid(jnp.array([1.0, 2.0]), 1.0, 1.0):.6f}")
        0.801784
    """
    dtype, (ratio, mean, deviation) = as_common(q=norm_ratio(q), mean=mean, deviation=deviation)
    inside = (mean > 0) & (deviation >= 0) & _sees(q)
    return jnp.where(inside, 1 / stable.hypot(jnp.ones_like(ratio), deviation / mean * ratio), jnp.nan).astype(dtype)


def _sees(q: Array) -> Array:
    """True for rows of features with a positive entry and no negative one."""
    return jnp.all(q >= 0, axis=-1) & jnp.any(q > 0, axis=-1)


def feature_map_rates(feature_map: Callable[[Array], Array]) -> tuple[float, float]:
    r"""First order of 1/S² − 1 for linear attention on white tokens: v(1 + v)/d + b/D; the pair v(1 + v), b.

    Queries and keys have d features φ(ε) of entries ε ~ N(0, 1), and tokens have D independent coordinates. With the
    mean μ̃ and the variance σ̃² of φ(ε), v = σ̃²/μ̃² and b = (E φ(ε)(ε² − 1))²/2μ̃². The moments are sums on a fine
    grid of ε in [−12, 12], right to the rounding of a smooth φ, to 1e-7 with kinks and 1e-3 with jumps.

    Args:
        feature_map: φ ≥ 0, elementwise; static.

    Returns:
        v(1 + v) and b; pure numbers.

    Raises:
        ValueError: the mean of φ is not positive, or a moment is not finite.

    Source: this package's own.

    Example:
        >>> import jax
        >>> from rc_jax import sparsity
        >>> print([f"{rate:.4f}" for rate in sparsity.feature_map_rates(jax.nn.relu)])  # v = π − 1, b = ½
        ['6.7280', '0.5000']
    """
    if not callable(feature_map):
        raise TypeError(f"`feature_map` must be a function of an array, got {arguments.describe(feature_map)}")
    with jax.ensure_compile_time_eval():
        x = np.linspace(-12, 12, 48_001)
        phi = np.asarray(feature_map(jnp.asarray(x, jnp.zeros(()).dtype)), float)
    weight = np.exp(-x * x / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    mean, second, quadratic = phi @ weight, phi**2 @ weight, phi @ (weight * (x * x - 1))
    if not (mean > 0 and np.isfinite(second)):
        raise ValueError(f"`feature_map` must have a positive mean and finite moments, got mean {mean:g}")
    v = second / mean**2 - 1
    return float(v * (1 + v)), float((quadratic / mean) ** 2 / 2)
