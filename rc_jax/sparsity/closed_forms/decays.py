"""Weights that decay with distance: λ^{n−j} with one λ, a mixture of such decays, and products of gates Π λ_t."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common, working_dtype
from rc_jax._numerics.stable import expm1_ratio
from rc_jax.sparsity import inputs

_DECAY = arguments.bounded(0, 1, open_low=True)


@arguments.guard(lam=_DECAY, n=arguments.bounded(1))
def decay(lam: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of exponentially decaying weights a_j = λ^{n−j}, j = 1 … n.

    S² = (1 − λⁿ)(1 + λ)/(n(1 − λ)(1 + λⁿ)) = tanh(nδ/2)/(n·tanh(δ/2)) with δ = −log λ. It is 1 at λ = 1, where the
    gradient is 0, and falls to 0 like √((1 + λ)/(n(1 − λ))) as n grows at fixed λ < 1. S and its derivatives in λ are
    right to a few roundings for every λ.

    Args:
        lam: Decay λ per position, in (0, 1]; any shape that broadcasts with `n`.
        n: Number of positions, at least 1.

    Returns:
        S, in the broadcast shape; a pure number.

    Source: Su Jianlin, kexue.fm/archives/9889, exponential decay.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.decay(0.5, 2):.6f} {sparsity.decay(1.0, 1000):.6f}")
        0.948683 1.000000
    """
    dtype, (lam, n) = as_common(lam=lam, n=n, positive=("lam",))
    return _decay(lam, n).astype(dtype)


@jax.jit
def _decay(lam: Array, n: Array) -> Array:
    """S = 1/√(1 + n t ℓ), of which nothing cancels in S nor in its derivatives."""
    value = lax.rsqrt(1 + n * _gap_ratio(lam) * _spread(lam, n))
    return jnp.where((lam > 0) & (lam <= 1) & (n >= 1), value, jnp.nan)


def _gap_ratio(lam: Array) -> Array:
    """The ratio t = (1 − λ)/(1 + λ) = tanh(δ/2), δ = −log λ."""
    return (1 - lam) / (1 + lam)


def _spread(lam: Array, n: Array) -> Array:
    """ℓ = coth(nδ/2) − coth(δ/2)/n, δ = −log λ: between 0, at λ = 1 or n = 1, and 1.

    Above λ = 1/2 from the series of coth(x/2) − 2/x, in which the poles at δ = 0 are gone; below from λ itself, as
    derivatives through log λ would multiply roundings by 1/λ.
    """
    far, delta, power = _split(lam, n)
    return jnp.where(
        lam > 0.5,
        _cotangent(n * delta) - _cotangent(delta) / n,
        (1 + power) / (1 - power) - (1 + far) / ((1 - far) * n),
    )


def _split(lam: Array, n: Array) -> tuple[Array, Array, Array]:
    """λ where it is at most 1/2, −log λ where it is more (elsewhere harmless values), and λⁿ of the first."""
    far, near = jnp.where(lam > 0.5, 0.5, lam), jnp.where(lam > 0.5, lam, 1)
    close = near > 0.75  # there λ − 1 is exact; XLA's log1p in double precision loses two digits towards −1/2
    log = jnp.where(close, jnp.log1p(jnp.where(close, near, 1) - 1), jnp.log(jnp.where(close, 1, near)))
    power = far**n
    # So that n = 1 gives λ to the bit. λ · λ^(n − 1) has a second derivative of 0 · λ^(−2).
    return far, -log, power + lax.stop_gradient(jnp.where(n == 1, far - power, 0))


def _cotangent(x: Array) -> Array:
    """coth(x/2) − 2/x for x ≥ 0, 0 at x = 0, with derivatives."""
    # Near 0 it is −4 Σ (−1)^k ζ(2k) x^{2k−1}/(2π)^{2k}; 18 terms reach double precision for x < 2.
    small, k = x < 2, np.arange(18, 0, -1)
    inner, away = jnp.where(small, x, 0), jnp.where(small, 2, x)
    terms = -4 * (-1.0) ** k * scipy.special.zeta(2 * k) / (2 * math.pi) ** (2 * k)
    series = inner * jnp.polyval(jnp.asarray(terms, x.dtype), jnp.square(inner))
    fall = jnp.exp(-away)
    return jnp.where(small, series, (1 + fall) / (1 - fall) - 2 / away)


@arguments.guard(weights=inputs.nonnegative_rows("channels"), lam=_DECAY, n=arguments.bounded(1))
def channel_decay(weights: ArrayLike, lam: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of a mixture of exponential decays, a_j = Σ_c w_c λ_c^{n−j}, j = 1 … n: one λ for each channel.

    With G(λ) = (1 − λⁿ)/(1 − λ), G(1) = n, S² = (Σ_c w_c G(λ_c))² / (n Σ_cc' w_c w_c' G(λ_c λ_c')). With every λ_c < 1
    it falls to 0 like n^{−1/2}. A channel with λ = 1 and w > 0 brings it back to 1 as n → ∞, whatever the others are,
    after a lowest value (`channel_decay_lowest`): in the end nearly all of the row is that channel's even part.

    Args:
        weights: Weights w_c ≥ 0 of the channels on the last axis, for instance φ(q)_c φ̄(k)_c; leading axes are a batch.
        lam: Decays λ_c per position, in (0, 1], on the last axis.
        n: Number of positions, at least 1; broadcasts with the batch.

    Returns:
        S, in the broadcast shape of the batch and `n`; a pure number.

    Raises:
        ValueError: all weights of a row are zero.

    Source: this package's own result, for decays λ per channel as in retention and gated linear attention.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> print([f"{sparsity.channel_decay(jnp.ones(2), jnp.array([0.5, last]), 1e4):.4f}" for last in (0.9, 1.0)])
        ['0.0375', '0.9999']
    """
    dtype, (weights, lam, n) = as_common(weights=weights, lam=lam, n=_for_channels(n), positive=("lam",))
    return _channels(weights, lam, n).astype(dtype)


def _for_channels(value: ArrayLike) -> Array | np.ndarray:
    """A number for each batch as one for all channels, on a new last axis."""
    return (value if isinstance(value, jax.Array) else np.asarray(value))[..., None]


@jax.jit
def _channels(weights: Array, lam: Array, n: Array) -> Array:
    """1/S² − 1 is the variance of a_j over their mean squared: a sum of covariances that are never negative.

    With M the mean of λ^s over s = 0 … n − 1 and v_c = w_c M(λ_c)/Σ w M, it is Σ_cc' v_c v_c' Q_cc', where
    Q_cc' = M(λ_c λ_c')/(M(λ_c) M(λ_c')) − 1 = n t_c t_c' (ℓ_c + ℓ_c')/(t_c + t_c').
    """
    inside = jnp.all((weights >= 0) & (lam > 0) & (lam <= 1) & (n >= 1), axis=-1)
    weights = weights / lax.stop_gradient(jnp.max(weights, axis=-1, keepdims=True))
    share = weights * mean_power(lam, n)
    share = share / jnp.sum(share, axis=-1, keepdims=True)
    gap, spread = _gap_ratio(lam), _spread(lam, n)
    both = gap[..., :, None] + gap[..., None, :]
    flat = both == 0  # two even channels, which do not vary
    part = jnp.where(flat, 0.5, gap[..., :, None] / jnp.where(flat, 1, both))
    pairs = 2 * part * (share * spread)[..., :, None] * (n * gap * share)[..., None, :]
    return jnp.where(inside, lax.rsqrt(1 + jnp.sum(pairs, axis=(-2, -1))), jnp.nan)


def mean_power(lam: Array, n: Array) -> Array:
    """G/n, the mean of λ^s over s = 0 … n − 1: (1 − λⁿ)/(n(1 − λ)), 1 at λ = 1; derivatives keep their digits."""
    far, delta, power = _split(lam, n)
    return jnp.where(lam > 0.5, expm1_ratio(-n * delta) / expm1_ratio(-delta), (1 - power) / (n * (1 - far)))


@arguments.guard(
    even=arguments.positive,
    weights=inputs.nonnegative_rows("channels"),
    lam=arguments.bounded(0, 1, open_low=True, open_high=True),
)
def channel_decay_lowest(
    even: ArrayLike, weights: ArrayLike, lam: ArrayLike
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""The length n* ≫ 1/(1 − λ_c) at which a mixture with one channel at λ = 1 focuses most, and S there.

    With w the weight of the even channel, X = Σ_c w_c/(1 − λ_c) and Y = Σ_cc' w_c w_c'/(1 − λ_c λ_c') of the others,

        S² ≈ (w + X/n)²/(w² + (2wX + Y)/n),   n* = X(2wX + Y)/(wY),   S²(n*) = 4wX(wX + Y)/(2wX + Y)²,

    and S ≈ 1 − Y/(2nw²) beyond. S(n*) is small only if wX ≪ Y, so the even channel must be a faint one.

    Args:
        even: Weight w > 0 of the channel with λ = 1.
        weights: Weights w_c ≥ 0 of the other channels, on the last axis.
        lam: Their decays, in (0, 1), on the last axis.

    Returns:
        n* and S(n*), in the broadcast shape of the batch.

    Raises:
        ValueError: all weights of a row are zero.

    Source: this package's own result.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> n, lowest = sparsity.channel_decay_lowest(1e-4, jnp.ones(1), jnp.array([0.9]))
        >>> print(f"{n:.0f} {lowest:.4f}")
        100038 0.0276
    """
    dtype, (weights, lam, even) = as_common(
        weights=weights, lam=lam, even=_for_channels(even), positive=("lam", "even")
    )
    where, lowest = _lowest(weights, lam, even)
    return where.astype(dtype), lowest.astype(dtype)


@jax.jit
def _lowest(weights: Array, lam: Array, even: Array) -> tuple[Array, Array]:
    """With r = √p, p = wX/Y: n* = 2X²/Y + X/w and S = 2√(p(1 + p))/(1 + 2p), of weights over their largest."""
    inside = jnp.all((weights >= 0) & (lam > 0) & (lam < 1) & (even > 0), axis=-1)
    largest = lax.stop_gradient(jnp.max(weights, axis=-1, keepdims=True))
    weights, gap = weights / largest, 1 - lam
    root = jnp.sqrt(even[..., 0]) / jnp.sqrt(largest[..., 0])  # a root has a place wherever both weights have one
    x = jnp.sum(weights / gap, axis=-1)
    both = gap[..., :, None] + lam[..., :, None] * gap[..., None, :]  # 1 − λλ'
    y = jnp.sum(weights[..., :, None] * weights[..., None, :] / both, axis=(-2, -1))
    r = root * jnp.sqrt(x / y)
    faint = r < 1
    small, over = jnp.where(faint, r, 0), 1 / jnp.where(faint, 1, r)
    square = jnp.square(small)
    narrow = 2 * small * jnp.sqrt(1 + square) / (1 + 2 * square)
    rest = jnp.square(over) / (2 + jnp.square(over))  # S² = 1 − 1/(1 + 2p)²
    lowest = jnp.where(faint, narrow, jnp.sqrt(1 - jnp.square(rest)))
    where = 2 * x * (x / y) + x / root / root
    return jnp.where(inside, where, jnp.nan), jnp.where(inside, lowest, jnp.nan)


@arguments.guard(log_gates=(inputs.rows("positions"), arguments.bounded(high=0)))
def gated_decay(log_gates: Float[Array, "*batch position"]) -> Float[Array, "*batch"]:
    r"""Sparsity of the last row of attention that decays by gates: a_j = Π_{t=j+1..n} λ_t, from the log λ_t ≤ 0.

    Sums of logarithms, largest weight a_n = 1, so that no product underflows before it no longer counts. The first gate
    multiplies nothing: it is there so that position and gate share an index.

    Args:
        log_gates: log λ_1 … log λ_n on the last axis, in nats, for instance from `jax.nn.log_sigmoid`.

    Returns:
        S for every row of gates; a pure number.

    Source: the weights of gated linear attention (Yang et al. 2024) with one gate for all channels; S is Su Jianlin's,
    kexue.fm/archives/9889.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.gated_decay(jnp.log(jnp.array([0.9, 0.5, 0.5]))):.6f} {sparsity.decay(0.5, 3):.6f}")
        0.881917 0.881917
    """
    log_gates = jnp.asarray(log_gates)
    return _gated(log_gates.astype(working_dtype(log_gates.dtype))).astype(log_gates.dtype)


@jax.jit
def _gated(log_gates: Array) -> Array:
    logs = log_gates[..., 1:]
    before = jnp.flip(jnp.cumsum(jnp.flip(logs, axis=-1), axis=-1), axis=-1)
    weights = jnp.concatenate([jnp.exp(before), jnp.ones_like(before, shape=(*before.shape[:-1], 1))], axis=-1)
    value = jnp.mean(weights, axis=-1) / jnp.sqrt(jnp.mean(jnp.square(weights), axis=-1))
    return jnp.where(jnp.all(log_gates <= 0, axis=-1), value, jnp.nan)


@arguments.guard(mean=_DECAY, second=_DECAY, n=arguments.bounded(1))
def gated_decay_annealed(mean: ArrayLike, second: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    r"""`gated_decay` with independent random gates, E a and E a² averaged apart: S = G(E λ)/√(n G(E λ²)).

    G(λ) = (1 − λⁿ)/(1 − λ), G(1) = n. It is `decay` when the gates do not vary, and falls to 0 like
    √((1 − E λ²)/n)/(1 − E λ) unless λ = 1 always. The mean of S itself is within 5 % for gates uniform on (0, 1) or
    σ(5 + 2ε). It tends to √π/2 of this, 11 % less, for gates that are 0 with a small probability and else near 1.

    Args:
        mean: E λ of a gate, in (0, 1].
        second: E λ², between (E λ)² and E λ.
        n: Number of positions, at least 1; shapes broadcast. It multiplies the roundings of both moments: 1 − E λ below
            a rounding of 1 is lost, and gates are 1 then.

    Returns:
        S, in the broadcast shape; a pure number.

    Raises:
        ValueError: no gate in (0, 1] has both moments.

    Source: this package's own result.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.gated_decay_annealed(0.5, 1 / 3, 100):.6f}")  # λ uniform on (0, 1)
        0.163299
    """
    dtype, (mean, second, n) = as_common(mean=mean, second=second, n=n, positive=("mean", "second"))
    slack = 8 * float(jnp.finfo(mean.dtype).eps)
    possible = (second <= mean + slack) & (second >= jnp.square(mean) - slack)
    known = arguments.at_hand(possible)
    if known is not None and not np.all(known):
        raise ValueError("`second` must be between mean² and mean, as for every λ in (0, 1]")
    inside = possible & (mean > 0) & (mean <= 1) & (second > 0) & (n >= 1)
    # Roundings of the moments count up to n times: no law has a second moment below the square of its mean.
    least = jnp.square(mean)
    # `clip` would halve derivatives at ties.
    second = jnp.where(second < least, least, jnp.where(second > mean, mean, second))
    first, square = mean_power(mean, n), mean_power(second, n)
    return jnp.where(inside, first / jnp.sqrt(square), jnp.nan).astype(dtype)
