"""Tests of exact residuals compile for longer than they compute."""

import pytest

from rc_jax import collapse
from tests.oracles.interpreted import interpreted


@pytest.fixture(autouse=True)
def interpreted_where_slow(request, monkeypatch):
    """In slow tests NumPy evaluates the program of `log_residuals`; the default ones run what users run."""
    if request.node.get_closest_marker("slow"):
        monkeypatch.setattr(collapse, "log_residuals", interpreted(collapse.log_residuals))
