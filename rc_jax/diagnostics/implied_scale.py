"""The scale α that independent Gaussian logits would need to have a given mean entropy: exact means, by quadrature.

With Z = Σ_j e^{αs_j} and s standard normal, Frullani's integral log Z = ∫ (exp(−e^x) − exp(−e^x Z)) dx turns the mean
over n independent scores into a power of a mean over one. With φ(x) = E exp(−e^{x+αs}) it gives, exactly for every n,

    E log Z = ∫ (exp(−e^x) − φ(x)ⁿ) dx,      E Σ p αs = n ∫ E[αs e^{x+αs} exp(−e^{x+αs})] φ(x)ⁿ⁻¹ dx,

and E H is their difference. Annealed, E H = log n − α²/2, which `rc_jax.scale.fixed_entropy_scale` inverts. That is
right for small α alone: it is negative beyond α = √(2 log n).
"""

import functools

import numpy as np
import scipy
from jaxtyping import Float, Int

STEP = 0.25
LEAST, MOST = 0.01, 24.0  # between which scales are tabulated
SCALES = 40
NODES = 24


def mean_entropy(alpha: float, n: Float[np.ndarray, " count"]) -> Float[np.ndarray, " count"]:
    """E H of softmax over n logits αs with independent standard normal s, in nats, to about ten digits.

    Args:
        alpha: α > 0, at most about 30: the work grows as its square.
        n: numbers of keys, at least 2.

    Source: Derrida (1981) for the random-energy model; the integrals are this package's own.

    Example:
        >>> import numpy as np
        >>> from rc_jax.diagnostics.implied_scale import mean_entropy
        >>> print(mean_entropy(1.0, np.array([2.0, 1024.0])).round(4))  # annealed: log 1024 - 1/2 = 6.4315
        [0.5395 6.4333]
    """
    # Nodes of s, out to where n scores have no tail left, so that x + αs takes few values: α times their distance is
    # STEP/k with a whole k.
    end = float(np.sqrt(2 * (np.log(n.max()) + 40)))
    k = int(np.ceil(40 * STEP / (alpha * end)))
    half = int(np.ceil(end * alpha * k / STEP))
    s = np.arange(-half, half + 1) * (STEP / (alpha * k))
    weights = np.exp(-s * s / 2)
    weights /= weights.sum()
    # Nodes of x where one of the integrands differs from 0, and the means 1 − φ and E[αs e^z exp(−e^z)] at them.
    low, high = int(np.floor((-alpha * end - 40) / STEP)), int(np.ceil((alpha * end + 8) / STEP))
    x = np.arange(low, high + 1) * STEP
    z = np.arange(low * k - half, high * k + half + 1) * (STEP / k)
    size = np.exp(np.minimum(z, 6.5))  # exp(−e^6.5) is 0 to any digit that is kept
    gone = np.minimum(np.convolve(-np.expm1(-size), weights, "valid")[::k], 1)
    rise = np.convolve(size * np.exp(-size), (alpha * s * weights)[::-1], "valid")[::k]
    # φⁿ and φⁿ⁻¹ for every n.
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.log1p(-gone)
        power = np.exp(np.multiply.outer(n, logarithm))
        power_less = np.where(gone < 1, np.exp(np.multiply.outer(n - 1, logarithm)), 0)
    log_sum = np.exp(-np.exp(np.minimum(x, 6.5)))[None] - power
    return STEP * (log_sum - n[:, None] * rise[None] * power_less).sum(-1)


def random_entropy(tokens: int, causal: bool) -> float:
    """Mean over rows of E H/log n_i for independent standard Gaussian logits, as 1/√d gives random queries and keys.

    Example:
        >>> from rc_jax.diagnostics.implied_scale import random_entropy
        >>> round(random_entropy(3000, causal=False), 3), round(random_entropy(3000, causal=True), 3)
        (0.938, 0.927)
    """
    nodes = np.unique(np.geomspace(2, tokens, NODES if causal else 2).astype(int))[0 if causal else -1 :].astype(float)
    shares = mean_entropy(1.0, nodes) / np.log(nodes)
    rows = np.arange(2, tokens + 1) if causal else nodes
    return float(np.interp(np.log(rows), np.log(nodes), shares).mean())


class EntropyScale:
    """α of the mean entropy of rows with given numbers of keys, from a table of `mean_entropy`.

    The mean over rows of E H(α, n_i) falls from the mean of log n_i to 0 as α grows. It is tabulated at 40 scales from
    0.01 to 24, and log α is interpolated: right to 2e-4 there. Below, log n − H grows as α²; above, H falls as 1/α.

    Args:
        keys: n_i ≥ 2 of the rows that count.
    """

    def __init__(self, keys: Int[np.ndarray, " row"]) -> None:
        counts, times = np.unique(keys, return_counts=True)
        share = times / times.sum()
        self.most = float(share @ np.log(counts))
        # Where there are many different n, E H is computed at a few, and a spline in log n gives each its weight.
        few = counts if len(counts) <= NODES else np.unique(np.geomspace(2, counts[-1], NODES))
        if len(few) < len(counts):
            share = share @ scipy.interpolate.CubicSpline(np.log(few), np.eye(len(few)))(np.log(counts))
        scales = np.geomspace(LEAST, MOST, SCALES)
        losses = np.array([share @ (np.log(few) - mean_entropy(alpha, few.astype(float))) for alpha in scales])
        # Beyond the last scale H falls as C/(α + b), through the last two: the first two orders in 1/α.
        before, self.least = self.most - losses[-2:]
        self._rise = (scales[-1] - scales[-2]) / (1 / self.least - 1 / before)
        odds = np.log(losses / (self.most - losses))
        self._inverse = scipy.interpolate.PchipInterpolator(odds, np.log(scales), extrapolate=True)

    def __call__(self, entropy: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """α of mean entropies in nats: 0 where the rows are even, ∞ where each has one key."""
        entropy = np.asarray(entropy, float)
        inside = (entropy > 0) & (entropy < self.most)
        safe = np.where(inside, entropy, self.most / 2)
        alpha = np.exp(self._inverse(np.log((self.most - safe) / safe)))
        beyond = MOST + (1 / np.minimum(safe, self.least) - 1 / self.least) * self._rise
        alpha = np.where(safe < self.least, beyond, alpha)
        return np.where(inside, alpha, np.where(entropy <= 0, np.inf, 0.0))


@functools.lru_cache(maxsize=512)
def _of_counts(keys: bytes) -> EntropyScale:
    return EntropyScale(np.frombuffer(keys, np.int64))


def entropy_scale(entropy: Float[np.ndarray, "..."], keys: Int[np.ndarray, " row"]) -> Float[np.ndarray, "..."]:
    """The scale α at which rows of independent Gaussian logits αs have this mean entropy.

    Args:
        entropy: means over rows, in nats; any shape.
        keys: the number of keys of each of these rows, at least 2.

    Returns:
        α: 0 for even rows, ∞ for rows of one key each.

    Source: this package's own; `rc_jax.scale.fixed_entropy_scale` is its annealed form for rows of one length.

    Example:
        >>> import numpy as np
        >>> from rc_jax.diagnostics.implied_scale import entropy_scale
        >>> print(entropy_scale(np.array([6.4333]), np.full(8, 1024)).round(3))
        [1.]
    """
    return _of_counts(np.ascontiguousarray(np.sort(keys), np.int64).tobytes())(entropy)


def optimal_scale(keys: Int[np.ndarray, " row"]) -> float:
    """Mean over rows of the scale α* = √(W₀(n√e/2) − ½) of most gradient, as `rc_jax.scale.optimal_scale_exact` has it.

    Computed on the host, so that nothing is compiled for each number of rows.
    """
    counts, times = np.unique(keys, return_counts=True)
    return float(np.sqrt(scipy.special.lambertw(counts * np.sqrt(np.e) / 2).real - 0.5) @ times / times.sum())
