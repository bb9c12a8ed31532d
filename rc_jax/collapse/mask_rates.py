"""How fast the residual falls by theory: under a mask, with a sink, and in attention to r random sums of the tokens.

A sink is a slot of constant weight s that every row sees beside its own weights p′: p = s·e_sink + (1 − s)·p′. Its
value is v times that of the first token. All rows add the same vector s v x₁W, so no difference between tokens sees it:
res(PX) = (1 − s) res(P′X) for every s, v, X and every P′ whose rows sum to 1.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.special import digamma
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common

_EPS, _KNOWN = float(np.finfo(float).eps), 1e-6  # rounding, and the error of a modulus up to which it is known
_SURE, _BLOCK = 1e-280, 2**22  # above it no term that counts has underflowed; the numbers of a block
# B_2k/2k for k = 7 … 1, of the asymptotic series of the digamma function
_BERNOULLI = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


def log_second_eigenvalue(mask: ArrayLike) -> float:
    """Log |λ₂| of a mask's uniform averaging D⁻¹A: the change of log ‖res‖ per layer of attention under the mask.

    A is the mask and D its row sums. The growth of Gaussian weights, `log_gaussian_gain`, comes on top.

    Args:
        mask: Which tokens (columns) each token sees (rows), a square of at least two tokens; on the host.

    Returns:
        The logarithm of the second-largest modulus among the eigenvalues; −∞ where that is below rounding. NaN where
        rounding leaves it in doubt by more than 1e-6, as for long masks that see far to one side and near to the other.

    Raises:
        ValueError: a row of `mask` sees nothing.

    Source: docs/masks_and_sparsity.md derives it.

    Example:
        >>> round(log_second_eigenvalue(np.tri(8)), 4)  # causal: the eigenvalues are 1, ½, …, ⅛
        -0.6931
    """
    averaging = _averaging(mask)
    seen = np.asarray(mask, float)
    # Tokens that reach each other make a block on the diagonal, in some order of the tokens; the blocks have all
    # eigenvalues.
    _, block = scipy.sparse.csgraph.connected_components(averaging > 0, connection="strong")
    parts = [np.flatnonzero(block == index) for index in range(block.max() + 1)]
    values, doubts = np.concatenate([_moduli(averaging, seen, tokens) for tokens in parts], axis=1)
    second = np.sort(values)[-2]
    if second <= len(values) * _EPS:
        return -np.inf
    in_doubt = (values + doubts >= second) & (doubts > _KNOWN * second)
    return float("nan") if in_doubt.any() else float(np.log(second))


def _moduli(averaging: np.ndarray, seen: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Moduli of the eigenvalues of one block of D⁻¹A, and bounds of their errors to first order in rounding."""
    block, visible = (part[np.ix_(tokens, tokens)] for part in (averaging, seen))
    if (visible == visible.T).all():
        # D⁻¹A has the eigenvalues of the symmetric D^{−½} A D^{−½}, whose errors are of the order of rounding.
        root = seen[tokens].sum(axis=1) ** -0.5
        values = np.abs(np.linalg.eigvalsh(root[:, None] * visible * root))
        return np.stack([values, np.full(len(values), len(values) * _EPS)])
    # An eigenvalue moves by a change of the matrix over the cosine between its left and its right vector.
    balanced, _ = scipy.linalg.matrix_balance(block)
    solution: Any = scipy.linalg.eig(balanced, left=True, right=True)
    values, left, right = solution
    cosines = np.abs((left.conj() * right).sum(axis=0))
    doubts = len(block) * _EPS * np.linalg.norm(balanced, 2) / np.maximum(cosines, _EPS**2)
    return np.stack([np.abs(values), doubts])


def _averaging(mask: ArrayLike) -> np.ndarray:
    """D⁻¹A of a mask, which is checked."""
    seen = np.asarray(mask, float)
    if seen.ndim != 2 or seen.shape[0] != seen.shape[1] or len(seen) < 2:
        raise ValueError(f"`mask` must be a square of at least two tokens, got shape {seen.shape}")
    if not (np.isfinite(seen) & (seen >= 0)).all():
        raise ValueError(
            "`mask` must be True or 1 where a token sees another and 0 elsewhere, got "
            f"{seen[~(np.isfinite(seen) & (seen >= 0))][0]:g}; of what is added to logits pass `mask == 0`"
        )
    sums = seen.sum(axis=1, keepdims=True)
    if not (sums > 0).all():
        raise ValueError("`mask` must let every token see a token, got a row of zeros")
    return seen / sums


@arguments.guard(
    eigenvalue=arguments.bounded(0, 1),
    weight=arguments.bounded(0, 1, open_high=True),
    value=arguments.bounded(0, 1),
    update=arguments.positive,
)
def log_sink_rate(
    eigenvalue: ArrayLike, weight: ArrayLike, value: ArrayLike = 1.0, *, update: ArrayLike = 1.0, skip: bool = True
) -> Float[Array, "..."]:
    """How a sink changes the relative residual: log of its factor per layer of linear attention.

    X ← κX + a(PX + s v 1x₁ᵀ) with P = (1 − s)P′ multiplies differences in the direction of an eigenvalue λ of P′ by
    κ + a(1 − s)λ, and what all tokens share by κ + a(1 − s + s v). The logarithm of the quotient is returned; κ is 1
    with a skip connection and 0 without.

    Args:
        eigenvalue: λ, 0 to 1; the second largest of P′ decides after many layers. Any shape.
        weight: s, 0 to 1, 1 excluded; broadcast.
        value: v, 0 to 1; broadcast. 0 is a sink without a value, 1 the first token itself.
        update: a > 0, the size of attention's output beside the skip connection; broadcast.
        skip: whether there is a skip connection.

    Returns:
        The change of log(‖res(X)‖ over what is shared) per layer, of the broadcast shape.

    Source: docs/sinks.md derives it.

    Example:
        >>> [round(float(log_sink_rate(0.5, 0.9, value)), 3) for value in (0, 1)]  # without a sink −0.288
        [-0.047, -0.644]
    """
    dtype, (root, weight, value, update) = as_common(eigenvalue=eigenvalue, weight=weight, value=value, update=update)
    kept = 1.0 if skip else 0.0
    apart, shared = update * (1 - weight) * root, update * (1 - weight + weight * value)
    # The quotient of two numbers that may be close is taken by its distance from 1.
    less = update * ((1 - weight) * (1 - root) + weight * value) / (kept + shared)
    close = less < 0.5
    far = jnp.log(kept + apart) - jnp.log(kept + shared)
    return jnp.where(close, jnp.log1p(-jnp.where(close, less, 0)), far).astype(dtype)


@arguments.guard(eigenvalue=arguments.bounded(0, 1), update=arguments.positive)
def critical_sink_value(eigenvalue: ArrayLike, *, update: ArrayLike = 1.0) -> Float[Array, "..."]:
    """v* = (1 − λ)/(1 + aλ): a sink of value 0 ≤ v < v* slows the relative collapse, and one of v > v* hastens it.

    It is where `log_sink_rate` with a skip connection does not depend on s. No weight s moves it.

    Args:
        eigenvalue: λ, 0 to 1, the second largest of the averaging; any shape.
        update: a > 0, the size of attention's output beside the skip connection; broadcast.

    Returns:
        v*, of the broadcast shape.

    Source: docs/sinks.md derives it.

    Example:
        >>> round(float(critical_sink_value(0.5)), 3)  # uniform causal attention
        0.333
    """
    dtype, (root, update) = as_common(eigenvalue=eigenvalue, update=update)
    return ((1 - root) / (1 + update * root)).astype(dtype)


@arguments.guard(
    mask=(),  # booleans too; `_averaging` looks at it
    depth=arguments.integer(0),
    weight=arguments.scalar(arguments.bounded(0, 1, open_high=True)),
    update=arguments.scalar(arguments.positive),
)
def log_sink_sensitivity(
    mask: ArrayLike, depth: int, weight: float, *, update: float = 1.0, skip: bool = True
) -> np.ndarray:
    """Log ∂x_j/∂x_i over the layers of linear attention with a sink: of the entries of (κI + a(1 − s)D⁻¹A)^depth.

    The derivative of token j after `depth` layers with respect to token i before them, the way through the sink left
    out. Of a causal mask this is the whole derivative for every token but the first. With a skip connection and a = 1
    it is the sum over paths in the bound of Barbero et al. (2025, theorem 3.2) for one head. Values and outputs that
    change nothing attain that bound. Every term is positive, so that nothing cancels.

    Args:
        mask: Which tokens (columns) each token sees (rows), a square of at least two tokens; on the host.
        depth: The number of layers, at least 0.
        weight: s, 0 to 1, 1 excluded.
        update: a > 0, the size of attention's output beside the skip connection.
        skip: whether there is a skip connection: κ is 1 with it and 0 without.

    Returns:
        Logarithms (token j, token i) in float64, −inf where i does not reach j; right to 1e-10 of the entries for
        a depth up to 10⁴, however far apart these are.

    Source: docs/sinks.md.

    Example:
        >>> one, many = (log_sink_sensitivity(np.tri(4), 8, weight)[3, 1] for weight in (0.0, 0.5))
        >>> bool(many < one)
        True
    """
    averaging = _averaging(mask)
    step = float(skip) * np.eye(len(averaging)) + update * (1 - weight) * averaging
    with np.errstate(divide="ignore"):
        power, reached = np.log(step), np.log(np.eye(len(step)))
    while depth:
        if depth % 2:
            reached = _log_product(power, reached)
        depth //= 2
        power = _log_product(power, power) if depth else power
    return reached


def _log_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Logarithms of the entries of e^A·e^B, which may lie farther apart than the numbers of float64."""
    rows, columns = a.max(axis=1, keepdims=True), b.max(axis=0, keepdims=True)
    rows, columns = (np.where(np.isneginf(largest), 0, largest) for largest in (rows, columns))
    product = np.exp(a - rows) @ np.exp(b - columns)
    with np.errstate(divide="ignore"):
        logs = np.log(product) + rows + columns
    # Of these sums the largest term may have underflowed; they are taken again, each with a scale of its own.
    ways = np.isfinite(a).astype(float) @ np.isfinite(b).astype(float)
    lost = np.argwhere((product < _SURE) & (ways > 0))
    for part in np.array_split(lost, len(lost) * len(a) // _BLOCK + 1):
        logs[part[:, 0], part[:, 1]] = scipy.special.logsumexp(a[part[:, 0]] + b[:, part[:, 1]].T, axis=1)
    return logs


@arguments.guard(size=arguments.bounded(1))
def log_gaussian_gain(size: ArrayLike) -> Float[Array, "..."]:
    """E log of what a Gaussian matrix with entries N(0, 1/d) does to a squared length: ψ(d/2) − log(d/2).

    It is E log(χ²_d/d), below 0 and near −1/d.

    Args:
        size: d, at least 1; any shape.

    Returns:
        The gain, in the argument's dtype and shape.

    Example:
        >>> round(float(log_gaussian_gain(64.0)), 4)
        -0.0157
    """
    dtype, (half,) = as_common(size=size)
    half = half / 2
    # The asymptotic series where both logarithms would cancel: −1/2x − 1/12x² + 1/120x⁴ − …
    many = half > 12
    part = 1 / jnp.where(many, half, 12)
    series = -part / 2 - jnp.square(part) * jnp.polyval(jnp.asarray(_BERNOULLI, half.dtype), jnp.square(part))
    few = jnp.where(many, 12, half)
    return jnp.where(many, series, digamma(few) - jnp.log(few)).astype(dtype)


@arguments.guard(rank=arguments.bounded(1), heads=arguments.bounded(1), d_model=arguments.bounded(1))
def pooled_curvature(rank: ArrayLike, heads: ArrayLike, d_model: ArrayLike) -> Float[Array, "..."]:
    """Second difference of log ‖res‖ in depth for attention to r Gaussian sums E X of the tokens: a parabola.

    Δ² log ‖res‖ = −[log r + log(H/2) − ψ(H/2) + 2 log(d/2) − 2ψ(d/2)]: every layer multiplies the tokens' mean by
    means of r normals, one for each head, and by two Gaussian matrices.

    Args:
        rank: r, the number of sums; any shape.
        heads: H; broadcast.
        d_model: d, the width; broadcast.

    Returns:
        The curvature, of the broadcast shape.

    Source: docs/masks_and_sparsity.md derives it.

    Example:
        >>> [round(float(pooled_curvature(r, 4, 64)), 2) for r in (2, 8, 16, 32)]
        [-0.99, -2.38, -3.07, -3.77]
    """
    dtype, (rank, heads, width) = as_common(rank=rank, heads=heads, d_model=d_model)
    return (-jnp.log(rank) + log_gaussian_gain(heads) + 2 * log_gaussian_gain(width)).astype(dtype)
