"""Compiled programs of this room are some 50 MB each: let go of them after every file."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    yield
    jax.clear_caches()
