"""Tests of exact residuals compile for longer than they compute."""

import pytest

from rc_jax import collapse
from tests.oracles.interpreted import interpreted as by_numpy


@pytest.fixture
def interpreted(monkeypatch):
    """NumPy evaluates the program of `log_residuals`."""
    monkeypatch.setattr(collapse, "log_residuals", by_numpy(collapse.log_residuals))


@pytest.fixture(autouse=True)
def interpreted_where_slow(request):
    """So it does in slow tests; most of the default ones run what users run."""
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("interpreted")
