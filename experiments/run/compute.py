"""Computing one figure, in whatever process: `compute` is the call that a run submits to its executor.

The call returns an `Outcome` and never raises. The run, which asked, stores it.
"""

import contextlib
import dataclasses
import faulthandler
import json
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.ledger import judged
from experiments.lib.figure import Broken, Figure, Unavailable, load
from experiments.run import identity, store
from experiments.run.choices import Run
from experiments.run.provenance import provenance

SNAPSHOT = Path(__file__).parents[2] / "docs" / "claims.json"


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
        code: The `identity.code_state` of the caller, which must be that of this process from beginning to end.
        figure: The figure itself; if None, it is loaded by its name.
    """
    try:
        module = figure or load(name, run.package)
        if isinstance(module, Broken):
            return Outcome(reason=module.reason, trace=module.error)
        if (identity.stem(run, name, module), identity.code_state(module)) != (stem, code):
            raise RuntimeError("the process that computes has other code, JAX, flags or models than the one that asked")
        spec = run.spec(module)
        _check_device()
        try_new_rows(run, module, known_rows(run))
        start = time.perf_counter()
        with settings(spec.dtype, hasty=module.ABOUT.hasty):
            data = store.numbers(module.compute(spec))
        seconds = time.perf_counter() - start

        # What was imported late may be another text than the one whose hash is known.
        if identity.code_state(module) != code:
            raise RuntimeError("its code was edited while it was computed: run the same command again")
        return Outcome(data, provenance(name, spec, seconds, code))
    except Unavailable as reason:
        return Outcome(reason=str(reason))
    except (Exception, SystemExit) as error:
        return Outcome(reason=in_a_line(error), trace=traceback.format_exc())


def known_rows(run: Run) -> frozenset[str] | None:
    """Keys of the rows that the docs have, which were judged before; None where there are no docs of the figures."""
    if run.package != Run.package or not SNAPSHOT.exists():
        return None
    figures = json.loads(SNAPSHOT.read_text(encoding="utf-8"))["figures"].values()
    return frozenset(claim["key"] for entry in figures for claim in entry["claims"])


def try_new_rows(run: Run, figure: Figure, known: frozenset[str] | None) -> None:
    """Judge rows that nobody has judged on the smoke preset, which takes seconds, before a longer one is computed.

    Raises:
        ValueError: a row cannot be judged, as where several points have no `where`.
    """
    new = [] if known is None or run.preset == "smoke" else [row for row in figure.ROWS if row.key not in known]
    if new:
        spec = dataclasses.replace(run, preset="smoke").spec(figure)
        with settings(spec.dtype, hasty=figure.ABOUT.hasty):
            judged(new, store.numbers(figure.compute(spec)))


def compute_apart(run: Run, name: str, stem: str, code: str) -> Outcome:
    """`compute` in a process of its own, with all that is said meanwhile, even by a crash, in the figure's log."""
    log = run.log(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb", buffering=0) as file:
        # File descriptors, not `sys.stdout`: XLA writes to them, and a crash does.
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    faulthandler.enable()
    return compute(run, name, stem, code)


def _check_device() -> None:
    """Raise an error that says what is wrong where JAX has no device."""
    import jax

    try:
        jax.devices()
    except Exception as error:
        wanted = os.environ.get("JAX_PLATFORMS", "")
        raise RuntimeError(f"JAX has no device, JAX_PLATFORMS is {wanted!r}: {in_a_line(error)}") from error


@contextmanager
def settings(dtype: str, *, hasty: bool = False) -> Iterator[None]:
    """The settings of JAX on which numbers depend, as stored numbers have them."""
    import jax

    own = {"jax_enable_x64": dtype == "float64", "jax_disable_most_optimizations": hasty}
    with contextlib.ExitStack() as stack:
        for name, value in {**identity.SETTINGS, **own}.items():
            if hasattr(jax, short := name.removeprefix("jax_")):
                stack.enter_context(getattr(jax, short)(value))
            else:
                stack.callback(jax.config.update, name, jax.config.values[name])
                jax.config.update(name, value)
        yield


def in_a_line(error: BaseException) -> str:
    """An error without its notes, of which JAX adds one about tracebacks."""
    message = next((line.strip() for line in f"{error}".splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
