"""Tests of exact residuals compile for longer than they compute."""

import jax
import jax.numpy as jnp
import pytest

from rc_jax import collapse, network
from tests.oracles.interpreted import interpreted as by_numpy


@pytest.fixture
def interpreted(monkeypatch):
    """NumPy evaluates the programs of `log_residuals` and `init`."""
    init = by_numpy(network.init)
    monkeypatch.setattr(collapse, "log_residuals", by_numpy(collapse.log_residuals))
    monkeypatch.setattr(network, "init", lambda *given, **options: jax.tree.map(jnp.asarray, init(*given, **options)))


@pytest.fixture(autouse=True)
def interpreted_where_slow(request):
    """So it does in slow tests; most of the default ones run what users run."""
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("interpreted")
