"""The bounds on collapse from their textbook formulas, in arbitrary precision and with explicit matrices."""

import mpmath as mp

from tests.oracles.collapse import matrix, select


def centred(x):
    """X minus its column means."""
    means = [mp.fsum(x[i, j] for i in range(x.rows)) / x.rows for j in range(x.cols)]
    return mp.matrix([[x[i, j] - means[j] for j in range(x.cols)] for i in range(x.rows)])


def columns(x):
    """‖·‖₁"""
    return max(mp.fsum(abs(x[i, j]) for i in range(x.rows)) for j in range(x.cols))


def rows(x):
    """‖·‖_∞"""
    return columns(x.T)


def composite(x):
    """‖·‖_{1,∞}"""
    return mp.sqrt(columns(x) * rows(x))


def diameter(x):
    """Largest distance between two rows."""
    pairs = [(i, j) for i in range(x.rows) for j in range(i)]
    return max(mp.sqrt(mp.fsum((x[i, k] - x[j, k]) ** 2 for k in range(x.cols))) for i, j in pairs)


def spectral(x):
    """Largest singular value, as a root of the largest eigenvalue of XᵀX."""
    return mp.sqrt(max(mp.eigsy(x.T * x, eigvals_only=True)))


def heads(params, index, alpha):
    """(α W_QK, W_V W_O) of every head of a layer; α is a list of one number per head."""
    weights = select(params, index).attention
    scores = (a * matrix(q) * matrix(k).T for a, q, k in zip(alpha, weights.query, weights.key, strict=True))
    values = (matrix(v) * matrix(o) for v, o in zip(weights.value, weights.output, strict=True))
    return list(zip(scores, values, strict=True))


def gamma_and_bound(x, pairs):
    """γ and the one-layer bound on ‖res‖_{1,∞}, for the mean as centre."""
    n = x.rows
    rest = centred(x)
    spread = mp.matrix(n, n)
    for i in range(n):
        for j in range(n):
            spread[i, j] = mp.mpf(i == j) - mp.mpf(1) / n
    spread = spread.apply(abs)
    first = second = constant = mp.mpf(0)
    for score, value in pairs:
        logits = rest * score * rest.T
        change = mp.matrix(n, 1)
        for i in range(n):
            row = [logits[i, j] for j in range(n)]
            delta = max(row) - min(row)
            change[i] = max(2 * delta, mp.expm1(delta))
        moved = spread * change
        first += mp.fsum(moved) * columns(value)
        second += max(moved) * rows(value)
        constant += columns(score) * composite(value)
    size = composite(rest)
    gamma = mp.sqrt(first * second) / (4 * constant * size**2)
    return gamma, 4 * gamma * constant * size**3


def beta(pairs):
    """H·max over heads of α‖W_QK‖₁‖W‖_{1,∞}."""
    return len(pairs) * max(columns(score) * composite(value) for score, value in pairs)


def tanh_growth(size, pairs):
    """The tanh theorem's bound on the diameter after a layer, from the one before."""
    return mp.fsum(spectral(w) * mp.tanh(spectral(a) * size**2 / 4) for a, w in pairs) * size


def tanh_constant(pairs):
    """Σ_h ‖W_h‖₂ α‖W_QK,h‖₂/4"""
    return mp.fsum(spectral(w) * spectral(a) for a, w in pairs) / 4
