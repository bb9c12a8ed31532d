"""Tokens on the sphere as particles: x ← x + h SA(x), brought back to length 1, with W_Q = W_K = W_V = I.

Logits are β⟨x, y⟩. Tokens with one common cosine ρ keep one. What is left to follow is the gap ε = 1 − ρ. With

    q = 1/(e^{βε} + n − 1),   p = e^{βε} q,   a = p − q,   S = n − (n − 1)ε

a token gives p to itself and q to each other one, SA(x_i) = a x_i + q Σ_j x_j, and outputs differ by a(x_i − x_j). From
this, with no number subtracted from one that is nearly equal,

    ⟨x, SA(x)⟩ = a + qS,   ‖SA(x)‖² = a² + qS(2a + nq),   ⟨x_j, SA(x_i)⟩ − ρ⟨x_i, SA(x_i)⟩ = εqS.

S and ε are the squares of what tokens share and of what tells them apart. u = log(S/ε) is carried, which keeps its
digits at both ends: ρ near 0 is u ≈ nρ, and ρ near 1 is u ≈ log n − log ε.

On the circle, particles that start evenly gather in clusters; their number is that of the Fourier mode that grows most.
docs/clustering.md has the proofs.
"""

import math
from typing import Literal, NamedTuple

import numpy as np
import scipy
from jaxtyping import ArrayLike
from numpy.typing import NDArray

from rc_jax._numerics import arguments

Norm = Literal["post", "pre", "peri", "ngpt"]
_TOKENS, _FACTOR = arguments.integer(2), arguments.scalar(arguments.positive)
_BETA = arguments.scalar(arguments.bounded(0))
_REAL = arguments.scalar(arguments.real)

_SCIPY_BESSEL = (
    1e8  # SciPy's Bessel functions are NaN from 2³⁰ on, and Debye's two terms are right to rounding from here
)
_RULE_HOLDS = 1e6  # from this β on, the rule for the fastest mode is as sharp as rates compared in double precision


class Equiangular(NamedTuple):
    """By layer or time: log(1 − ρ) of the common cosine ρ, and the length of the tokens in the residual stream."""

    log_gap: NDArray[np.float64]
    radius: NDArray[np.float64]


class _Attention(NamedTuple):
    """What a layer sees of tokens of length 1 with one common cosine: q, a, S, ⟨x, SA(x)⟩ and ‖SA(x)‖."""

    other: float
    apart: float
    sum: float
    along: float
    size: float


def _attention(u: float, tokens: int, beta: float) -> _Attention:
    # Weights by e^{−βε}, which overflows for no β; a = p − q = p(1 − e^{−βε}) keeps its digits as ε → 0.
    ratio = math.exp(-u)
    total = tokens / (1 + (tokens - 1) * ratio)
    gap = ratio * total
    falloff = math.exp(-beta * gap)
    own = 1 / (1 + (tokens - 1) * falloff)
    other, apart = own * falloff, -math.expm1(-beta * gap) * own
    size = math.sqrt(apart**2 + other * total * (2 * apart + tokens * other))
    return _Attention(other, apart, total, apart + other * total, size)


def _first(start: float, tokens: int) -> float:
    """The first u = log(S/ε), with S = 1 − (n − 1)(ε − 1)."""
    most = math.log(tokens / (tokens - 1))
    above = (tokens - 1) * math.expm1(start) if start < most else 1
    if not above < 1:
        raise ValueError(f"`start` must be < log(n/(n − 1)) = {most:.4g} for n = {tokens} tokens, got {start:g}")
    return math.log1p(-above) - start


def _log_gap(u: NDArray[np.float64], tokens: int) -> NDArray[np.float64]:
    """Log ε = log(n/(e^u + n − 1)), without overflow."""
    near, far = np.minimum(u, 700), np.maximum(u, 700)
    apart = math.log(tokens) - far - np.log1p((tokens - 1) * np.exp(-far))
    return np.where(u < 700, 0.0 - np.log1p(np.expm1(near) / tokens), apart)


@arguments.guard(steps=arguments.positive, tokens=_TOKENS, beta=_BETA, start=_REAL, radius=_FACTOR)
def equiangular_layers(
    steps: ArrayLike, tokens: int, beta: float, *, norm: Norm = "post", start: float = 0.0, radius: float = 1.0
) -> Equiangular:
    """log(1 − ρ) after every layer of a network with skip connections, exact at any depth.

    With h the step, θ = x/‖x‖, N(y) = y/‖y‖ and logits β⟨θ, θ'⟩, a layer is

        post:  x ← N(x + h SA(x))            pre:   x ← x + h SA(θ)
        ngpt:  x ← N((1 − h)x + h N(SA(x)))  peri:  x ← x + h N(SA(θ))

    Each is x ← rθ + bA with A = SA(θ), so differences are multiplied by r + ba and the sum of the tokens by
    r + ba + bnq. With the module's a, q, S

        log(S/ε) ← log(S/ε) + 2 log(1 + bnq/(r + ba)).

    As ε → 0 this is ε(1 + h)^−2 (post), ε(1 − h)² (ngpt) and ε r²/(r + h)² (pre and peri): exponential in depth where
    the stream is brought back to length 1, and of second order in depth where it grows. This package's own form.

    Args:
        steps: h of each layer, shape (depth,); below 1 for `ngpt`. h_l = 1/√l is the scaling by depth, and Mix-LN is
            `post` followed by `pre` that starts from its last gap.
        tokens: n ≥ 2.
        beta: β ≥ 0.
        norm: where tokens are normalised.
        start: log(1 − ρ) at first; 0 for orthogonal tokens.
        radius: length of the tokens at first, for `pre` and `peri`.

    Returns:
        `Equiangular` with depth + 1 numbers each.

    Raises:
        ValueError: ρ ≤ −1/(n − 1) at first.

    Source:
        The schemes: Karagodin, Ge, Polyanskiy & Rigollet 2025, arXiv:2510.22026, in continuous time.

    Example:
        >>> steps = np.full(1000, 0.5)
        >>> deep = {norm: equiangular_layers(steps, 16, 1.0, norm=norm).log_gap for norm in ("post", "pre")}
        >>> {norm: round(float(log_gap[-1]), 2) for norm, log_gap in deep.items()}
        {'post': -807.77, 'pre': -12.06}
    """
    moves = np.asarray(steps, float)
    u = _first(start, tokens)
    if moves.ndim != 1:
        raise ValueError(f"`steps` must be one number for each layer, got {arguments.describe(moves)}")
    if norm == "ngpt" and (moves >= 1).any():
        raise ValueError(f"`steps` must be < 1 for norm='ngpt', got {moves.max():g}")
    # One token and one branch, r θ + b A, at a time.
    length, grows = float(radius), norm in ("pre", "peri")
    rows = [(u, length if grows else 1.0)]
    for step in moves:
        seen = _attention(u, tokens, beta)
        kept = length if grows else 1 - step if norm == "ngpt" else 1.0
        branch = step / seen.size if norm in ("peri", "ngpt") else step
        differences = kept + branch * seen.apart
        gain = branch * seen.other * seen.sum * (2 * differences + branch * tokens * seen.other) / differences**2
        u += 2 * math.log1p(branch * tokens * seen.other / differences)
        length = differences * math.sqrt(1 + gain)
        rows.append((u, length if grows else 1.0))
    ratios, radii = np.array(rows).T
    return Equiangular(_log_gap(ratios, tokens), radii)


@arguments.guard(times=arguments.bounded(0), tokens=_TOKENS, beta=_BETA, start=_REAL, radius=_FACTOR)
def equiangular_flow(
    times: ArrayLike, tokens: int, beta: float, *, norm: Norm = "post", start: float = 0.0, radius: float = 1.0
) -> Equiangular:
    """log(1 − ρ) in the limit of many weak layers, h → 0 with t = Σh: one flow, run at the speed of each norm.

    d log(S/ε)/dt = 2nq/s,   s = 1 (post), r (pre), r‖A‖ (peri), ‖A‖ (ngpt),   dr/dt = ⟨θ, A⟩ (pre), ⟨θ, A⟩/‖A‖ (peri)

    The equation for `post` is that of the pairwise cosine, ρ̇ = 2e^{βρ}(1 − ρ)((n − 1)ρ + 1)/(e^β + (n − 1)e^{βρ}).
    Speeds that depend on time alone only change the clock: h = 1/√(t + 1) is `post` at 2√(t + 1) − 2.

    Args:
        times: t ≥ 0, shape (times,), in rising order; equal ones may follow each other.
        tokens: n ≥ 2.
        beta: β ≥ 0.
        norm: where tokens are normalised, as in `equiangular_layers`.
        start: log(1 − ρ) at first; 0 for orthogonal tokens.
        radius: length of the tokens at first, for `pre` and `peri`.

    Returns:
        `Equiangular` with a number for each time, by a Runge–Kutta method of order 8 with a tolerance of 1e−13. Tokens
        that stay apart for long make an error of log ε, of the rounding of t too, larger by up to (e^{βε} + n − 1)/n,
        ε the first one: 3e11 for β = 30 and n = 32.

    Raises:
        ValueError: times that fall, or ρ ≤ −1/(n − 1) at first.

    Source:
        `post`: Geshkovski, Letrouit, Polyanskiy & Rigollet, arXiv:2312.10794, section 6.2. The speeds: Karagodin, Ge,
        Polyanskiy & Rigollet 2025, arXiv:2510.22026.

    Example:
        >>> flow = equiangular_flow(np.array([1.0, 100.0]), 2, 0.0)  # ρ = tanh t
        >>> print(f"{-math.expm1(flow.log_gap[0]):.6f}, {math.tanh(1):.6f}, {flow.log_gap[1]:.6f}")
        0.761594, 0.761594, -199.306853
    """
    moments, grows = np.asarray(times, float), norm in ("pre", "peri")
    u = _first(start, tokens)
    if moments.ndim != 1 or moments.size == 0 or (np.diff(moments) < 0).any():
        raise ValueError(f"`times` must be numbers in rising order, got {arguments.describe(moments)}")

    def speeds(_: float, at: NDArray[np.float64]) -> tuple[float, float]:
        seen = _attention(float(at[0]), tokens, beta)
        slowing = math.exp(at[1]) if grows else 1.0
        slowing *= seen.size if norm in ("peri", "ngpt") else 1.0
        return 2 * tokens * seen.other / slowing, seen.along / slowing if grows else 0.0

    # The logarithms of S/ε and radius: neither becomes too small for a relative error.
    first = (u, math.log(radius) if grows else 0.0)
    last = max(float(moments[-1]), np.finfo(float).tiny)
    different, place = np.unique(moments, return_inverse=True)
    solution = scipy.integrate.solve_ivp(speeds, (0.0, last), first, "DOP853", different, rtol=1e-13, atol=1e-13)
    assert solution.success, solution.message
    return Equiangular(_log_gap(solution.y[0], tokens)[place], np.exp(solution.y[1])[place])


@arguments.guard(mode=arguments.bounded(0), beta=arguments.positive)
def circle_mode_growth(mode: ArrayLike, beta: ArrayLike) -> NDArray[np.float64]:
    """Rate at which a Fourier mode of a nearly even density on the circle grows, per unit of time of the softmax flow.

    σ_k = k² I_k(β)/(β I₀(β))

    With e^{β cos φ} = I₀ + 2Σ I_k cos kφ, softmax pulls a token at φ with (1/β) d/dφ log(1 + 2Σ (I_k/I₀) Re(m_k
    e^{ikφ})), m_k the mean of e^{−ikφ} over the tokens. To first order in m_k the continuity equation is dm_k/dt = σ_k
    m_k. Without the softmax's denominator σ_k loses its I₀.

    Args:
        mode: k ≥ 0, any shape.
        beta: β > 0; broadcast.

    Returns:
        σ_k; the largest tends to 2/e as β grows.

    Source:
        k² I_k(β), up to a constant, is in the notebook released with Bruno, Pasqualotto & Agazzi 2025,
        arXiv:2410.23228; derived here.

    Example:
        >>> [round(float(circle_mode_growth(k, 5.0)), 3) for k in (1, 2, 3, 4)]
        [0.179, 0.514, 0.683, 0.6]
    """
    k, strength = np.asarray(mode, float), np.asarray(beta, float)
    return np.asarray(k**2 / strength * _bessel_ratio(k, strength))


def _bessel_ratio(order: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """I_k(x)/I₀(x): by SciPy up to x = 1e8, and beyond by Debye's expansion (DLMF 10.41.3), two terms of it.

    With S = √(k² + x²) and p = k/S, log e^{−x} I_k is k²/(S + x) − k arsinh(k/x) − ½ log 2πS + (3 − 5p²)/(24 S).
    """
    near, far = np.minimum(x, _SCIPY_BESSEL), np.maximum(x, _SCIPY_BESSEL)
    s = np.hypot(order, far)
    leading = order * (order / (s + far)) - order * np.arcsinh(order / far) - np.log1p(np.square(order / far)) / 4
    log_ratio = leading + (3 - 5 * np.square(order / s)) / (24 * s) - 1 / (8 * far)
    return np.where(x > _SCIPY_BESSEL, np.exp(log_ratio), scipy.special.ive(order, near) / scipy.special.ive(0, near))


@arguments.guard(beta=arguments.bounded(0, 1e36, open_low=True))
def fastest_circle_mode(beta: ArrayLike) -> NDArray[np.int64]:
    """The Fourier mode that grows most, argmax_k k² I_k(β): the number of clusters on the circle of very many tokens.

    Both (k + 1)²/k² and I_{k+1}/I_k fall with k, so that the rates rise to one maximum. With I_k/I₀ ≈ e^{−k²/2β} it
    lies at √(2β). With the next terms of log I_k the rate rises from k to k + 1 while (k + ½)² < 2β − ¼, up to terms
    of order 1/β.

    Args:
        beta: β > 0, at most 1e36, so that k is an integer of 64 bits; any shape.

    Source:
        Bruno, Pasqualotto & Agazzi 2025, arXiv:2410.23228, for tokens that are independent and uniform at first.

    Example:
        >>> fastest_circle_mode(np.array([1.0, 5.0, 7.0, 20.0])).tolist()
        [1, 3, 4, 6]
    """
    strength = np.asarray(beta, float)
    # The first k that the asymptotic rule stops at, or, where β is not large, the best of its neighbours.
    first = np.maximum(np.ceil(np.sqrt(np.maximum(2 * strength - 0.25, 0)) - 0.5), 1)
    tried = np.maximum(first[..., None] + np.arange(-2, 3), 1)
    best = circle_mode_growth(tried, strength[..., None]).argmax(axis=-1)
    near = np.take_along_axis(tried, best[..., None], axis=-1)[..., 0]
    return np.where(strength < _RULE_HOLDS, near, first).astype(np.int64)


@arguments.guard(beta=arguments.bounded(0, 1e12, open_low=True), time=arguments.bounded(0))
def expected_circle_clusters(beta: ArrayLike, time: ArrayLike = 0.0) -> NDArray[np.float64]:
    """Expected number of maxima of the attention field on the circle while independent uniform tokens begin to cluster.

    √(λ₄/λ₂),   λ_j = Σ_k k^j (I_k(β)/I₀(β))² e^{2σ_k t}

    The field Σ_j e^{β cos(φ − φ_j)} of many independent tokens is Gaussian, with spectrum (I_k/I₀)², and its mode k
    grows by e^{σ_k t}. Rice's formula counts the maxima. At t = 0 and large β that is √(3β/2), and as t → ∞ it is the
    fastest mode. The field is no longer linear once its modes are of order one, at t of about log(n)/(2 max σ_k) for n
    tokens.

    Args:
        beta: β > 0, at most 1e12; any shape. Memory grows like √β.
        time: t ≥ 0 of the softmax flow; broadcast.

    Source:
        Rice 1945, "Mathematical analysis of random noise", for the maxima; the spectrum is this package's own.

    Example:
        >>> [round(float(expected_circle_clusters(20.0, t)), 2) for t in (0, 10, 1000)]
        [5.47, 6.2, 6.0]
    """
    # The number is 1 to every digit far above the β whose I₁² is below the smallest number.
    strength, moment = np.maximum(np.asarray(beta, float), 1e-100)[..., None], np.asarray(time, float)[..., None]
    # e^{−k²/β} is below rounding at the last mode, before growth; growth prefers modes near √(2β).
    modes = np.arange(1.0, math.ceil(9 * math.sqrt(strength.max(initial=1))) + 3)
    growth = circle_mode_growth(modes, strength)
    # Growth relative to that of the fastest mode, so that no time is too long.
    field = _bessel_ratio(modes, strength) * np.exp((growth - growth.max(axis=-1, keepdims=True)) * moment)
    moments = [(modes**power * field**2).sum(axis=-1) for power in (2, 4)]
    return np.asarray(np.sqrt(moments[1] / moments[0]))
