"""Tests that judge by hundredths of a nat, and compile for longer than they compute."""

import pytest


@pytest.fixture
def hasty_where_slow(request):
    """Slow tests are compiled without optimisation, which may add roundings; the default ones are compiled with it."""
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("hasty_compiler")
