"""Makes figures: stored ones are loaded, the others are computed by an executor, as many at a time as it takes.

Only the run's own process stores, draws, judges and writes. A figure that fails, fails alone: its traceback goes to
`logs/<name>.log`, its error into the report, the others go on. An interrupt leaves everything finished so far on disk.
The ledger is made of stored results each time and never read, so that what stands in an old one does not matter.
"""

import contextlib
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from typing import Any

import rc_jax
from experiments.ledger import judged, record
from experiments.ledger.record import DONE, FAILED, UNAVAILABLE, Entry
from experiments.lib.figure import Broken, Figure, Registry, cost
from experiments.run import compute, executors, identity, store
from experiments.run.choices import Run
from experiments.run.compute import Outcome
from experiments.run.report import drawing
from experiments.run.report.progress import Progress

EARLY = 4  # figures that come first, the shortest, each with a page, so that there is soon something to see
MANY = 1_000_000  # calls that an executor is given at a time, where it does not say how many
PAUSE = 1.0  # seconds between two looks at the clock and at whether the run is to stop
DEAD = "the process that computed it has died: a crash, or too little memory"
GONE = "the scheduler has gone: run the same command again"
Say = Callable[[str], None]


def make_all(
    run: Run,
    names: Sequence[str],
    registry: Registry,
    executor: Callable[[], Executor],
    stopped: Callable[[], bool] = lambda: False,
) -> Generator[dict[str, Entry], None, None]:
    """Make the named figures; after each, yield all entries that there are, in the registry's order.

    `claims.json` has them then. Entries of figures that are not named are judged of what is stored.

    Args:
        run: What was asked for.
        names: Figures to make.
        registry: Every figure.
        executor: Called when the first figure is to be computed.
        stopped: Asked now and then; where it says so, the run ends.
    """
    if stopped():
        return
    store.tidy(run.folder)
    others = {name: judge(run, name, registry[name]) for name in registry if name not in names}
    entries = {name: entry for name, entry in others.items() if entry is not None}
    with Progress({name: cost(registry[name], run.preset) for name in names}, quiet=run.quiet) as progress:
        for name, outcome in _numbers(run, names, registry, executor, progress, stopped):
            entries[name] = make(run, name, registry[name], outcome, progress.say)
            entries = {name: entries[name] for name in registry if name in entries}
            about = {"preset": run.preset, "seed": run.seed, "version": rc_jax.__version__}
            record.write(run.folder, entries.values(), **about)
            progress.finish(entries[name])
            yield entries


def _numbers(
    run: Run,
    names: Sequence[str],
    registry: Registry,
    executor: Callable[[], Executor],
    progress: Progress,
    stopped: Callable[[], bool],
) -> Iterator[tuple[str, Outcome | None]]:
    """Every figure once its numbers are there, with the outcome of computing it; None where nothing is to compute."""
    together, alone = list[str](), list[str]()
    for name in names:
        figure = registry[name]
        if not (isinstance(figure, Broken) or run.replot or is_current(run, name, figure, progress.say)):
            (alone if figure.ABOUT.alone else together).append(name)
    ready = [name for name in names if name not in (*together, *alone)]
    progress.minutes |= dict.fromkeys(ready, 0.0)
    for name in ready:
        if stopped():
            return
        yield name, None

    if not together and not alone:
        return
    made = executor()
    try:
        slots = getattr(made, "slots", MANY)
        groups = [in_order(together, slots), *([name] for name in alone)]  # what measures time comes last, alone
        for group in groups:
            waiting, calls = list(group), dict[Future[Outcome], str]()
            while (waiting or calls) and not stopped():
                while waiting and len(calls) < slots:
                    name = waiting.pop(0)
                    calls[_submit(made, run, name, registry[name])] = name
                    progress.start(name)
                for future in wait(calls, timeout=PAUSE, return_when=FIRST_COMPLETED).done:
                    if not stopped():
                        yield calls.pop(future), outcome_of(future)
                progress.show()
    finally:
        with contextlib.suppress(Exception):  # a scheduler may have gone first
            made.shutdown(wait=False)


def in_order(names: Sequence[str], slots: int) -> list[str]:
    """Names, the cheapest first, in the order in which they are computed.

    One process goes on like that. Several take the longest after the first few, so that all end together.

    Example:
        >>> in_order("abcdefg", slots=2)
        ['a', 'b', 'c', 'd', 'g', 'f', 'e']
    """
    early = len(names) if slots == 1 else EARLY
    return [*names[:early], *reversed(names[early:])]


def _submit(executor: Executor, run: Run, name: str, figure: Figure | Broken) -> Future[Outcome]:
    assert not isinstance(figure, Broken)
    run.log(name).unlink(missing_ok=True)
    call = compute.compute_apart if getattr(executor, "apart", False) else compute.compute
    try:
        known = identity.stem(run, name, figure), identity.code_state(figure)
        return executor.submit(call, run.anywhere(), name, *known)
    except Exception as error:  # an executor that takes no more calls, such as one whose scheduler has gone
        failed = Future[Outcome]()
        failed.set_exception(error)
        return failed


def outcome_of(future: Future[Outcome]) -> Outcome:
    """The outcome of a call; a process that has died is the failure of its figure."""
    try:
        outcome = future.result()
        if isinstance(outcome, Outcome):
            return outcome
        raise TypeError(f"the worker must return an Outcome, got {type(outcome).__name__}")
    except CancelledError:
        return Outcome(reason=GONE, trace=GONE)
    except Exception as error:
        dead = isinstance(error, executors.Died) or type(error).__name__ == "KilledWorker"
        return Outcome(reason=DEAD if dead else compute.in_a_line(error), trace=traceback.format_exc())


def make(
    run: Run, name: str, figure: Figure | Broken, outcome: Outcome | None = None, say: Say = lambda text: None
) -> Entry:
    """One figure, from its numbers to its entry in the ledger: they are given, or stored, or computed here.

    Raises:
        OSError: the failure of the figure cannot be written down.
    """
    about: dict[str, Any] = {"name": name, "title": name, "command": run.command(name)}
    reused = outcome is None
    try:
        if isinstance(figure, Broken):
            return _unmade(run, about, Outcome(reason=figure.reason, trace=figure.error), reused)
        about |= described(figure)
        stored = load_stored(run, name, figure, say) if outcome is None else None
        if stored is None and run.replot:
            raise FileNotFoundError(f"no stored result to draw again: run `{run.command(name)}` first")

        # Numbers of this state of the code; to draw again, of any state.
        code, stem = identity.code_state(figure), identity.stem(run, name, figure)
        if stored is None or not (run.replot or stored.provenance.get("code") == code):
            outcome, reused = outcome or compute.compute(run, name, stem, code, figure), False
            if outcome.data is None:
                return _unmade(run, about, outcome, reused)
            store.save(run.data, stem, outcome.data, outcome.provenance)
            stored = store.load(run.data, stem)
            assert stored is not None

        drawing.draw(run, name, figure, stored)
        entry = _judged(about, figure, stored, reused=reused)
        run.log(name).unlink(missing_ok=True)
        return entry
    except Exception as error:
        return _unmade(run, about, Outcome(reason=compute.in_a_line(error), trace=traceback.format_exc()), reused)


def judge(run: Run, name: str, figure: Figure | Broken) -> Entry | None:
    """The entry of a figure that is not made in this run, judged of what is stored, whatever code computed it.

    None where nothing is stored, or nothing that can be judged.
    """
    if isinstance(figure, Broken) or not run.shows(figure) or (stored := load_stored(run, name, figure)) is None:
        return None
    about = {"name": name, "command": run.command(name), **described(figure)}
    try:
        return _judged(about, figure, stored, reused=True)
    except Exception:  # its own run, which `pending` of the report asks for, says what is wrong
        return None


def described(figure: Figure) -> dict[str, str]:
    """What an entry says of a figure in the figure's own words."""
    return {field: getattr(figure.ABOUT, field) for field in ("title", "topic", "caption", "formula")}


def _judged(about: dict[str, Any], figure: Figure, stored: store.Stored, *, reused: bool) -> Entry:
    return Entry(
        **about,
        status=DONE,
        claims=judged(figure.ROWS, stored.data),
        warnings=tuple(store.nonfinite(stored.data)),
        provenance=stored.provenance,
        old=stored.provenance.get("code") != identity.code_state(figure),
        reused=reused,
    )


def _unmade(run: Run, about: dict[str, Any], outcome: Outcome, reused: bool) -> Entry:
    """The entry of a figure that lacks something, or that failed: then its log has the traceback."""
    drawing.forget(run, about["name"])
    log = run.log(about["name"])
    if not outcome.trace:
        log.unlink(missing_ok=True)
        return Entry(**about, status=UNAVAILABLE, reason=outcome.reason)
    output = "" if reused or not log.exists() else log.read_text(encoding="utf-8", errors="replace")
    store.write(log, output + outcome.trace)
    return Entry(**about, status=FAILED, reason=outcome.reason)


def load_stored(run: Run, name: str, figure: Figure, say: Say = lambda text: None) -> store.Stored | None:
    """A stored result that can be trusted; a damaged one is reported and counts as none."""
    try:
        return store.load(run.data, identity.stem(run, name, figure))
    except store.Damaged as reason:
        say(f"  {name}: the stored result is damaged ({reason})")
        return None


def is_current(run: Run, name: str, figure: Figure, say: Say) -> bool:
    """True where a result is stored that this state of the code computed."""
    stored = load_stored(run, name, figure, say)
    same = stored is not None and stored.provenance.get("code") == identity.code_state(figure)
    if stored is not None and not same:
        say(f"  {name}: the code has changed since its result was stored; computing it again")
    return same
