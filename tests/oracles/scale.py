"""Optimal scales by arbitrary-precision root finding on integrated moments, and probabilities taken plainly."""

import mpmath as mp
import numpy as np

# Rows of scores of every kind: all equal, a tie at the top, nothing special, one far above the others.
SCORES = {
    "equal": [0.25, 0.25, 0.25, 0.25],
    "two": [1.0, 0.0],
    "tie": [2.0, 2.0, -1.0],
    "random": np.random.default_rng(0).normal(size=12).tolist(),
    "peaked": [9.0, 0.0, -1.0, 1.0],
}


def moment(alpha, dim):
    """E e^{αs} for cosines in `dim` dimensions, integrated over the density ∝ (1 − s²)^{(d−3)/2}."""
    power = mp.mpf(dim - 3) / 2
    points = [-1, 0, mp.mpf(1) / 2, mp.mpf(3) / 4, mp.mpf(7) / 8, 1]
    top = mp.quad(lambda s: mp.exp(alpha * s) * (1 - s * s) ** power, points)
    return top / mp.quad(lambda s: (1 - s * s) ** power, points)


def moment_closed(alpha, dim):
    """The same by the power series of ₀F₁, for dimensions too large to integrate."""
    return mp.hyp0f1(mp.mpf(dim) / 2, mp.mpf(alpha) ** 2 / 4, maxterms=10**7)


def cosine_scale(n, dim, guess, moment=moment_closed):
    """Maximiser of α(1 − M(2α)/(n M(α)²)): root of a numerical derivative, 40 digits."""
    with mp.workdps(40):

        def objective(alpha):
            return alpha * (1 - moment(2 * alpha, dim) / (n * moment(alpha, dim) ** 2))

        guess = mp.mpf(float(guess))
        return mp.findroot(lambda a: mp.diff(objective, a), (guess * mp.mpf("0.99"), guess * mp.mpf("1.01")), tol=1e-25)


def cosine_stationarity(alpha, dim):
    """C + log(1 + αC′), C = log M(2α) − 2 log M(α), with a numerical derivative."""

    def concentration(alpha):
        return mp.log(moment_closed(2 * alpha, dim)) - 2 * mp.log(moment_closed(alpha, dim))

    return concentration(alpha) + mp.log1p(alpha * mp.diff(concentration, alpha))


def gaussian_scale(n):
    """Root of e^{α²}(1 + 2α²) = n by bisection, 40 digits; n may be a string."""
    with mp.workdps(40):
        target = mp.log(mp.mpf(n))
        low, high = mp.mpf(0), mp.sqrt(target) + 1
        for _ in range(140):
            middle = (low + high) / 2
            if middle**2 + mp.log1p(2 * middle**2) < target:
                low = middle
            else:
                high = middle
        return low


def probabilities(scores, alpha):
    """Softmax of α times scores, at the working precision."""
    weights = [mp.exp(mp.mpf(float(alpha)) * mp.mpf(float(s))) for s in scores]
    total = mp.fsum(weights)
    return [w / total for w in weights]


def gradient_norm(scores, alpha):
    """Half the sum of absolute entries of α(diag p − p pᵀ), entry by entry."""
    with mp.workdps(60):
        p = probabilities(scores, alpha)
        entries = [abs((p[i] if i == j else 0) - p[i] * p[j]) for i in range(len(p)) for j in range(len(p))]
        return mp.mpf(float(alpha)) * mp.fsum(entries) / 2


def entropies(scores, alpha):
    """Shannon's and Rényi's entropy of softmax, from the probabilities, plainly."""
    with mp.workdps(60):
        p = probabilities(scores, alpha)
        return -mp.fsum(x * mp.log(x) for x in p), -mp.log(mp.fsum(x * x for x in p))


def entropy_loss(alpha, dim, moment=moment_closed):
    """log n − H = αM′/M − log M, the slope by numerical differentiation."""
    with mp.workdps(40):
        alpha = mp.mpf(alpha)
        return alpha * mp.diff(lambda a: mp.log(moment(a, dim)), alpha) - mp.log(moment(alpha, dim))


def cosine_entropy_loss(alpha, dim):
    """log n − H for cosines, from Bessel functions in many digits."""
    with mp.workdps(60):
        alpha, order = mp.mpf(alpha), mp.mpf(dim) / 2 - 1
        bessel = mp.besseli(order, alpha)
        log_moment = mp.log(bessel) + order * mp.log(2 / alpha) + mp.loggamma(order + 1)
        return alpha * mp.besseli(order + 1, alpha) / bessel - log_moment


def jacobian(scores, alpha):
    """α(diag p − p pᵀ) of softmax, in many digits, as double precision."""
    with mp.workdps(40):
        p = probabilities(scores, alpha)
        rows = [[float(alpha * ((a if i == j else 0) - a * b)) for j, b in enumerate(p)] for i, a in enumerate(p)]
    return np.array(rows)


def threshold_weights(scores, alpha, power):
    """max(αs/power − τ, 0)^power that add up to one, τ by bisection."""
    logits = alpha * (scores - scores.max()) / power
    low, high = -1.0, 0.0
    for _ in range(80):
        middle = (low + high) / 2
        if (np.maximum(logits - middle, 0) ** power).sum() > 1:
            low = middle
        else:
            high = middle
    return np.maximum(logits - low, 0) ** power


def absolute_moment(k):
    """E|s|^k of a standard normal, integrated."""
    return float(mp.quad(lambda s: s**k * mp.exp(-s * s / 2), [0, 2, 5, 20]) * mp.sqrt(2 / mp.pi))
