"""Computing one figure, in whatever process: `compute` is the call that a run submits to its executor.

The call returns an `Outcome` and never raises. The caller stores it.
"""

import contextlib
import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lib import unfinished
from experiments.lib.figure import Broken, Figure, Unavailable, load
from experiments.run import identity, store
from experiments.run.choices import Run
from experiments.run.provenance import provenance

PROGRAMS = ".programs"  # in the folder of all results
MAPS = Path("/proc/self/maps")
# The settings of JAX on which numbers depend, precision apart.
SETTINGS = {
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
    "jax_default_matmul_precision": "highest",
    "jax_numpy_dtype_promotion": "standard",
    "jax_allow_f16_reductions": True,
    "jax_softmax_custom_jvp": False,
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
}
MOST_MAPS = 20_000  # Linux grants a process 65 530; past them XLA crashes


@dataclass(frozen=True)
class Outcome:
    """The arrays of a figure and how they came to be, or the reason why there are none; a failure has a trace."""

    data: Mapping[str, np.ndarray] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    trace: str = ""


def compute(run: Run, name: str, stem: str, code: str, figure: Figure | None = None) -> Outcome:
    """Compute a figure by the spec and the state of the code that the caller has.

    Args:
        run: What the run was asked for.
        name: The figure's name.
        stem: The `identity.stem` of the caller, which must be that of this process.
        code: The `identity.code_state` of the caller, which must be that of this process.
        figure: The figure itself; if None, it is loaded by its name.
    """
    try:
        identity.library()  # before more of it is imported
        module = figure or load(name, run.package)
        if isinstance(module, Broken):
            return Outcome(reason=module.reason, trace=module.error)
        if (identity.stem(run, name, module), identity.code_state(module)) != (stem, code):
            raise RuntimeError("the process that computes has other code, JAX or models than the one that asked")
        spec = run.spec(module)
        _check_device()
        forget_programs()

        # What is unfinished stays in the run's folder, where there is one.
        kept = unfinished.kept(folder(run, stem, code)) if run.folder.is_dir() else contextlib.nullcontext()
        start = time.perf_counter()
        with kept, _restored(), settings(spec.dtype, module.ABOUT.hasty):
            data = store.numbers(module.compute(spec))
        if edited := identity.edited():
            raise RuntimeError(f"{', '.join(edited)} was edited before it was imported: run the same command again")
        return Outcome(data, provenance(name, spec, time.perf_counter() - start, code))
    except Unavailable as reason:
        return Outcome(reason=str(reason))
    except (Exception, SystemExit) as error:
        return Outcome(reason=in_a_line(error), trace=traceback.format_exc())


def _check_device() -> None:
    """Raise an error that says what is wrong where JAX has no device."""
    import jax

    try:
        jax.devices()
    except Exception as error:
        wanted = os.environ.get("JAX_PLATFORMS", "")
        raise RuntimeError(f"JAX has no device, JAX_PLATFORMS is {wanted!r}: {in_a_line(error)}") from error


@contextmanager
def settings(dtype: str, hasty: bool) -> Iterator[None]:
    """The settings of JAX on which numbers depend, as stored numbers have them."""
    import jax

    own = {"jax_enable_x64": dtype == "float64", "jax_disable_most_optimizations": hasty}
    with contextlib.ExitStack() as stack:
        if hasty:  # JAX does not tell programs apart by it, and roundings would depend on what ran before
            jax.clear_caches()
            stack.callback(jax.clear_caches)
        for name, value in {**SETTINGS, **own}.items():
            if hasattr(jax, short := name.removeprefix("jax_")):
                stack.enter_context(getattr(jax, short)(value))
            else:
                stack.callback(jax.config.update, name, jax.config.values[name])
                jax.config.update(name, value)
        yield


@contextmanager
def _restored() -> Iterator[None]:
    """Give the process its environment, folder and permissions of new files back afterwards."""
    environment, mask = dict(os.environ), os.umask(0o077)
    os.umask(mask)
    place = os.open(".", os.O_RDONLY) if hasattr(os, "fchdir") else None
    try:
        yield
    finally:
        os.umask(mask)
        if place is not None:
            os.fchdir(place)
            os.close(place)
        os.environ.clear()
        os.environ.update(environment)


def forget_programs() -> None:
    """Let go of compiled programs, each of which holds maps of memory, where there are many of them."""
    import jax

    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


def compute_here(run: Run, name: str, stem: str, code: str) -> Outcome:
    """`compute` in a process of a run's own, with all that is said meanwhile, even by a crash, in the figure's log."""
    with _said_to(run.log(name)):
        _keep_programs(run.out / PROGRAMS)
        return compute(run, name, stem, code)


def _keep_programs(folder: Path) -> None:
    """Keep what XLA compiles for other seeds and later runs, where the user keeps it nowhere else."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def folder(run: Run, stem: str, code: str) -> Path:
    """The folder of a figure's unfinished work, until its result is stored."""
    return run.folder / "unfinished" / f"{stem}-{code}"


@contextmanager
def _said_to(log: Path) -> Iterator[None]:
    """Send both output streams, and the last words of a crash, to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    streams = os.dup(1), os.dup(2)
    try:
        # File descriptors, not `sys.stdout`: XLA writes to them, and a crash does.
        with log.open("wb", buffering=0) as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            faulthandler.enable(file)
            yield
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        faulthandler.disable()
        for number, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream, number)
            os.close(stream)


def in_a_line(error: BaseException) -> str:
    """An error without its notes, of which JAX adds one about tracebacks."""
    message = next((line.strip() for line in f"{error}".splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
