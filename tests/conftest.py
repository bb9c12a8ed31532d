"""Eight virtual devices, strict promotion, and double precision on request. Runs before jax is imported."""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import jaxtyping
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


MAPS = pathlib.Path("/proc/self/maps")
MOST_MAPS = 20_000


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Let go of compiled programs before there are too many: XLA maps memory for each, and crashes where Linux refuses.

    Linux grants a process 65 530 maps; a worker that ran half of these tests would need more.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """Both working precisions, with double precision switched on for the second."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def as_installed():
    """No run-time type checks, as for a user: what is left to refuse bad input is the package's own doors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def key():
    return jax.random.key(0)
