"""Two tokens with random values: the drawn layers against layers of the package, and the law near opposite places."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from experiments.figures.particles import two_tokens
from experiments.ledger import judged
from rc_jax import attention


def opposites(cosine, dimension):
    """Two unit tokens of a given cosine."""
    return jnp.array([[1.0] + [0.0] * (dimension - 1), [cosine, (1 - cosine**2) ** 0.5] + [0.0] * (dimension - 2)])


def test_drawn_layers_have_the_law_of_attention_with_random_values(x64):
    """Mean and spread of 1 + ρ after one layer x ← N(x + √h SA(x)), values Gaussian, in standard errors."""
    beta, gap, step, dimension, count = 1.3, 0.4, 0.05, 5, 20_000
    x = opposites(gap - 1, dimension)
    spec = attention.AttentionSpec(d_model=dimension)
    same = jnp.eye(dimension)[None]

    def after(key):
        value = jax.random.normal(key, (1, dimension, dimension))
        moved = x + step**0.5 * attention.attend(
            attention.AttentionParams(same, same, value, same), x, spec, scale=beta
        )
        moved /= jnp.linalg.norm(moved, axis=1, keepdims=True)
        return 1 + moved[0] @ moved[1]

    layers = np.asarray(jax.vmap(after)(jax.random.split(jax.random.key(0), count)))
    drawn = np.asarray(two_tokens._noisy(jax.random.key(1), beta, gap, step, 1, pairs=count, dimension=dimension))
    for power in (1, 2):
        a, b = (np.power(each - gap, power) for each in (layers, drawn))
        assert abs(a.mean() - b.mean()) < 5 * np.hypot(a.std(), b.std()) / count**0.5


@pytest.mark.parametrize(("dimension", "beta"), [(4, 0.3), (10, 1.0), (10, 2.0)])
def test_drift_near_opposites_from_moments_of_one_layer(dimension, beta):
    """Itô's rule with the second moments of V a and V b, a and b the two mixtures, in 30 digits."""
    with mpmath.workdps(30):
        gap = mpmath.mpf(10) ** -10
        rho = gap - 1
        own = 1 / (1 + mpmath.e ** (-beta * (1 - rho)))
        size = own**2 + (1 - own) ** 2 + 2 * own * (1 - own) * rho  # |a|² = |b|²
        product = 2 * own * (1 - own) + (own**2 + (1 - own) ** 2) * rho  # a·b
        mean = product * (dimension - 2 + rho**2) - size * (dimension - 1) * rho
        variance = 2 * (1 - rho**2) * (size - product * rho)
        drift = mean / gap - variance / (2 * gap**2)
    assert two_tokens.predicted(dimension, beta) == pytest.approx(float(drift), rel=1e-7)
    threshold = two_tokens.threshold(dimension)
    assert two_tokens.predicted(dimension, threshold) == pytest.approx(0, abs=1e-12)


def test_rows_can_fail():
    data = {
        "betas": np.array([0.5, 1.0]), "times": np.linspace(0, 8, 801), "tokens": np.array(8),
        "dimensions": np.array([4, 10]), "ratios": np.array([0.8, 1.2]), "pairs": np.array(500),
        "share": np.array([[0.1, 0.5], [0.0, 0.6]]), "drift_error": np.full((2, 2), 0.02), "late_time": np.array(8.0),
        "apart": np.array([[0.0, 0.2], [0.0, 0.3]]),
    }  # fmt: skip
    data["gap"] = np.exp(-2 * np.stack([np.ones(2), np.exp(data["betas"])])[..., None] * data["times"])
    beta = data["ratios"] * np.array([two_tokens.threshold(each) for each in (4, 10)])[:, None]
    data["drift"] = two_tokens.predicted(data["dimensions"][:, None], beta)
    known = {claim.key: claim.verdict for claim in judged(two_tokens.ROWS, data)}
    assert known == {
        "pair-unnormalised": "agrees", "pair-opposites": "agrees", "pair-not-one": "agrees", "pair-threshold": "held"
    }  # fmt: skip
    changes = {
        "pair-unnormalised": {"gap": data["gap"][::-1]},
        "pair-opposites": {"share": data["share"][:, ::-1]},
        "pair-not-one": {"apart": data["apart"][:, ::-1]},
        "pair-threshold": {"drift": -data["drift"]},
    }
    lost = ("differs", "failed", "undecided")
    for key, change in changes.items():
        assert {claim.key: claim.verdict for claim in judged(two_tokens.ROWS, data | change)}[key] in lost
