"""Slow tests of exact arithmetic compile for longer than they compute; what is right is so by any compiler."""

import pytest


@pytest.fixture(autouse=True)
def hasty_where_slow(request):
    """The default tests keep the compiler's optimisation."""
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("hasty_compiler")
