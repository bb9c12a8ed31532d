"""Eight virtual devices, strict promotion, one cache of compiled programs, and double precision on request.

Runs before jax is imported.
"""

import atexit
import ctypes
import gc
import importlib.metadata
import os
import pathlib
import resource
import shutil
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Every core has a worker of its own: threads of NumPy's and PyTorch's products would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

# Most of the tests' time is compiling, and these options more than halve it: one module for LLVM, because every core
# has a worker of its own, XLA's older emitters of fused loops, and no optimisation by LLVM; programs that run longer
# than they compile ask for it one by one (`tests/compiling.py`). XLA refuses options that it does not know: jaxlib
# 0.12 has no such emitters, but a preset that compiles faster.
# `RC_JAX_TESTS_COMPILE=as-installed` leaves the compiler alone.
if os.environ.get("RC_JAX_TESTS_COMPILE") != "as-installed":
    old = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 12)
    os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1 --xla_backend_optimization_level=0"
    os.environ["XLA_FLAGS"] += f" --xla_cpu_{'use_fusion_emitters=false' if old else 'opt_preset=FAST_COMPILE'}"
    # Programs do not say which line an operation came from; the one test that reads it asks for it.
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# All processes of a run read each other's compiled programs: workers and subprocesses inherit the variables, and the
# folder goes when the run ends. Whoever sets `JAX_COMPILATION_CACHE_DIR` keeps the programs.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="rc_jax_programs_")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
# The smallest program as well: another process reads it in a seventh of the time that compiling takes.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import hypothesis
import jax
import jaxtyping
import pytest

# The same examples in every run, however busy the machine is; `--hypothesis-profile=default` draws others.
hypothesis.settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same")

# A trace makes many small objects and hardly any rubbish: looking for it as often as Python does takes a twelfth of the
# time.
gc.set_threshold(50_000, 20, 50)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

MAPS = pathlib.Path("/proc/self/maps")
MOST_MAPS, MOST_PAGES = 30_000, 3 * 2**30 // resource.getpagesize()


def _full():
    """Whether this process holds many maps, or 3 GiB."""
    if not MAPS.exists():
        return False
    pages = int(MAPS.with_name("statm").read_text().split()[1])
    return pages > MOST_PAGES or MAPS.read_bytes().count(b"\n") > MOST_MAPS


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Let go of programs before there are too many: XLA maps memory for each, and crashes where Linux refuses.

    Linux grants a process 65 530 maps; a worker that ran half of these tests would need more. What is traced and not
    compiled needs none, but memory. The C library keeps that until it is told to give it back, and without that a
    worker would stay full.
    """
    yield
    if _full():
        jax.clear_caches()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the GNU library alone has it
        if trim is not None:
            trim(0)


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["float32", pytest.param("float64", marks=pytest.mark.slow)])
def dtype(request):
    """Both working precisions: single by default, double, which is switched on for the test, with the slow tests."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture
def as_installed():
    """No run-time type checks, as for a user: what is left to refuse bad input is the package's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def key():
    return jax.random.key(0)
