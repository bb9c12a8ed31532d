"""Titles and claims of the map of kernels see what they speak of: each is denied by another kernel's map."""

import jax
import numpy as np
import pytest

from experiments.figures.sparsity import focus_map
from experiments.ledger import judged
from rc_jax import sparsity
from tests.experiments import smoke_data

TITLES = {
    "focuses with γ": ("softmax", "top", "signed_exponential"),
    "only as β/γ → −∞": ("relu", "relu_squared"),
    "only as β/γ → −∞ and γ → ∞": ("softplus", "sigmoid", "elu_plus_one", "linear"),
    "cannot": ("identity", "power6", "tanh", "cosine_squared"),
}


@pytest.fixture
def data():
    return smoke_data.load("focus_map")


def verdicts(data):
    return {claim.key: claim.verdict for claim in judged(focus_map.ROWS, data)}


def test_titles_are_computed(data):
    for title, names in TITLES.items():
        assert {focus_map._verdict(data, name).split(":")[0] for name in names} == {title}
    assert focus_map._by_power(data).startswith("only with m, from")
    never = data | {"cosine_limit": data["cosine_limit"] * 0 + 0.3}
    assert focus_map._by_power(never) == "cannot: S ≥ 0.300"


@pytest.mark.parametrize(
    ("key", "name", "other"),
    [
        ("focus-relu", "relu", "softplus"),  # needs γ besides
        ("focus-relu2", "relu_squared", "softmax"),
        ("focus-both", "sigmoid", "relu"),  # needs no γ
        ("focus-both", "softplus", "softmax"),  # focuses at every β
        ("focus-cannot", "tanh", "elu_plus_one"),
    ],
)
def test_claims_can_fail(data, key, name, other):
    assert verdicts(data)[key] in ("agrees", "held")
    swapped = data | {f"{where}{name}": data[f"{where}{other}"] for where in ("", "far_")}
    assert verdicts(swapped)[key] in ("differs", "failed")


def test_sigmoid_is_like_softmax_only_far_below_minus_two_gamma_squared(x64):
    """At γ = 8 and β = −64 the mean of f² is that of keys where sigmoid is no exponential any more."""
    near, far = (float(sparsity.from_kernel(jax.nn.sigmoid, beta, 8.0)) for beta in (-64.0, -240.0))
    epsilon = np.linspace(-12, 40, 400_001)
    density, sigmoid = np.exp(-(epsilon**2) / 2), 1 / (1 + np.exp(64.0 - 8 * epsilon))
    moments = [np.sum(density * sigmoid**power) * (epsilon[1] - epsilon[0]) / np.sqrt(2 * np.pi) for power in (1, 2)]
    assert near == pytest.approx(moments[0] / np.sqrt(moments[1]), rel=1e-6) == pytest.approx(2.551e-7, rel=1e-3)
    assert far == pytest.approx(np.exp(-32), rel=1e-6)


def test_the_quadrature_knows_its_error(data):
    """S itself is between 0 and 1."""
    assert max(data["error"].max(), data["far_error"].max()) < 1e-3
