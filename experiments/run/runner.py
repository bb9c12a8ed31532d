"""Makes figures: stored ones are loaded, the others are computed by an executor, as many at a time as it takes.

Only the run's own process stores, draws, judges and writes. A figure that fails, fails alone: its traceback goes to
`logs/<name>.log`, its error into the report, the others go on. An interrupt leaves everything finished so far on disk.
"""

import dataclasses
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from filelock import BaseFileLock

from experiments.ledger import judged, record
from experiments.ledger.record import DONE, FAILED, UNAVAILABLE, Entry
from experiments.lib import unfinished
from experiments.lib.figure import Broken, Figure, Registry, cost
from experiments.run import drawing, identity, store, work
from experiments.run.choices import Run
from experiments.run.pool import Processes
from experiments.run.progress import Progress
from experiments.run.work import Outcome
from rc_jax._numerics import files

EARLY = 4  # figures of which one process makes the shortest first
PAUSE = 1.0  # seconds between two attempts to lock a figure that another run computes
Say = Callable[[str], None]


def make_all(
    run: Run,
    names: Sequence[str],
    registry: Registry,
    executor: Callable[[], Executor] = Processes,
    again: Sequence[str] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> Generator[Entry, None, None]:
    """Make the named figures, yielding each entry once `claims.json` has it.

    Args:
        run: What was asked for.
        names: Figures to make.
        registry: Every figure.
        executor: Called when the first figure is to be computed.
        again: More figures, judged from what is stored, whatever code stored it.
        stopped: Asked now and then; where it says so, the run ends.
    """
    store.tidy(run.folder)
    for name in (*names, *again):
        identity.code_state(registry[name])  # reads the files that have been imported, before somebody edits them
    stored = dataclasses.replace(run, replot=True)
    with Progress({name: cost(registry[name], run.preset) for name in (*names, *again)}, quiet=run.quiet) as progress:
        # Figures are computed by the executor; stored, drawn and judged here, one after the other.
        queue = Queue(run, registry, executor, progress)
        for name in names:
            queue.add(name)
        queue.ready += [(name, None) for name in again]
        try:
            for name, outcome in queue.results(stopped):
                if name in again:
                    entry = make(stored, name, registry[name], say=progress.say, draw=False)
                else:
                    entry = make(run, name, registry[name], outcome, progress.say)
                record.update(run, registry, entry)
                progress.finish(entry)
                yield entry
        finally:
            queue.stop()


class Queue:
    """Figures to compute, those being computed, and those whose numbers can be loaded or are there."""

    def __init__(self, run: Run, registry: Registry, executor: Callable[[], Executor], progress: Progress):
        self.run, self.registry, self.progress, self.new_executor = run, registry, progress, executor
        self.executor: Any = None
        self.waiting: list[str] = []  # the cheapest first
        self.alone: list[str] = []  # figures that measure time
        self.computing: dict[Future[Outcome], str] = {}
        self.ready: deque[tuple[str, Outcome | None]] = deque()
        self.locks: dict[str, BaseFileLock] = {}
        self.elsewhere: set[str] = set()  # figures that another run computes
        self.cheap: list[str] = []  # figures that were taken from the cheap end

    def add(self, name: str) -> None:
        """Take a figure on: it is ready where it is stored or cannot be computed."""
        figure = self.registry[name]
        if isinstance(figure, Broken) or self.run.replot or is_current(self.run, name, figure, self.progress.say):
            self.ready.append((name, None))
            self.progress.clock.skip(name)
        else:
            (self.alone if figure.ABOUT.alone else self.waiting).append(name)

    def results(self, stopped: Callable[[], bool] = lambda: False) -> Iterator[tuple[str, Outcome | None]]:
        """Every figure once its numbers are there, with the outcome of computing it; None where it was not computed."""
        while (self.waiting or self.alone or self.computing or self.ready) and not stopped():
            self.submit()
            if self.computing:
                getattr(self.executor, "look", lambda: None)()
                done = wait(self.computing, timeout=0 if self.ready else PAUSE, return_when=FIRST_COMPLETED).done
                self.ready += [(self.computing.pop(future), outcome_of(future)) for future in done]
            elif not self.ready:
                time.sleep(PAUSE)  # another run computes all that is left
            if self.ready and not stopped():
                name, outcome = self.ready.popleft()
                yield name, outcome
                if lock := self.locks.pop(name, None):
                    lock.release()

    def submit(self) -> None:
        """Give the executor as many figures as it takes, the longest first, so that all processes end together.

        One process begins with the shortest, so that there is soon something to see; a single one goes on like that.
        """
        if self.alone and not (self.waiting or self.computing or self.ready):
            self.waiting.append(self.alone.pop(0))  # it measures time, so that nothing else may run
        tried: set[str] = set()
        while len(self.computing) < (slots := getattr(self.executor, "slots", 1)):
            left = [name for name in self.waiting if name not in tried]
            if not left:
                return
            begun = len(self.cheap) >= EARLY or any(each in self.cheap for each in self.computing.values())
            cheap = slots == 1 or not begun
            name = left[0 if cheap else -1]
            tried.add(name)
            if not self.lock(name):
                continue
            self.waiting.remove(name)

            # Another run may have stored it since the first attempt; what is wrong with an old result was said then.
            figure = self.registry[name]
            assert not isinstance(figure, Broken)
            say = self.progress.say if name in self.elsewhere else lambda text: None
            if is_current(self.run, name, figure, say):
                self.ready.append((name, None))
                continue

            # The executor is made when the first figure is to be computed.
            if cheap:
                self.cheap.append(name)
            self.executor = self.executor or self.new_executor()
            self.run.log(name).unlink(missing_ok=True)
            call = getattr(self.executor, "call", work.compute)
            known = identity.stem(self.run, name, figure), identity.code_state(figure)
            self.computing[self.executor.submit(call, self.run.anywhere(), name, *known)] = name
            self.progress.start(name)

    def lock(self, name: str) -> bool:
        """Lock a figure for this run; False while another run has it."""
        figure = self.registry[name]
        assert not isinstance(figure, Broken)
        lock = files.hold(self.run.data / f".{identity.stem(self.run, name, figure)}.lock")
        if lock is not None:
            self.locks[name] = lock
        elif name not in self.elsewhere:
            self.elsewhere.add(name)
            self.progress.say(f"  {name}: another run is at it; waiting for its result")
        return lock is not None

    def stop(self) -> None:
        """Shut the executor down at once; what it computes is lost, and nobody waits for what a figure left running."""
        if self.executor is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)
        for lock in self.locks.values():
            lock.release()


def outcome_of(future: Future[Outcome]) -> Outcome:
    """The outcome of a call; a process that has died is the failure of its figure."""
    try:
        error = future.exception()
    except CancelledError as cancelled:
        error = cancelled
    if error is None:
        outcome = future.result()
        if isinstance(outcome, Outcome):
            return outcome
        error = TypeError(f"the worker must return an Outcome, got {type(outcome).__name__}")
    if isinstance(error, CancelledError):
        return Outcome(reason="the scheduler has gone: run the same command again", trace="the scheduler has gone")
    dead = isinstance(error, BrokenProcessPool) or type(error).__name__ == "KilledWorker"
    reason = "the process that computed it has died: a crash, or too little memory" if dead else work.in_a_line(error)
    return Outcome(reason=reason, trace="".join(traceback.format_exception(error)))


def make(
    run: Run,
    name: str,
    figure: Figure | Broken,
    outcome: Outcome | None = None,
    say: Say = lambda text: None,
    *,
    draw: bool = True,
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
        about |= {field: getattr(figure.ABOUT, field) for field in ("title", "topic", "caption", "formula")}
        code = about["code"] = identity.code_state(figure)

        # Numbers of this state of the code; to draw again, of any state.
        stem = identity.stem(run, name, figure)
        stored = load_stored(run, name, figure, say) if outcome is None else None
        if stored is None or not (run.replot or stored.provenance.get("code") == code):
            if run.replot:
                raise FileNotFoundError(f"no stored result to draw again: run `{run.command(name)}` first")
            outcome, reused = outcome or work.compute(run, name, stem, code, figure), False
            if outcome.data is None:
                return _unmade(run, about, outcome, reused)
            store.save(run.data, stem, outcome.data, outcome.provenance)
            unfinished.forget(work.folder(run, stem, code))
            stored = store.load(run.data, stem)
            assert stored is not None

        # Pictures and verdicts.
        if draw:
            drawing.draw(run, name, figure, stored)
        claims = judged(figure.ROWS, stored.data)
        run.log(name).unlink(missing_ok=True)
        about |= {"code": stored.provenance["code"], "judged": identity.judging_state(figure)}
        warnings = tuple(store.nonfinite(stored.data))
        return Entry(
            **about, status=DONE, claims=claims, warnings=warnings, provenance=stored.provenance, reused=reused
        )
    except Exception as error:
        return _unmade(run, about, Outcome(reason=work.in_a_line(error), trace=traceback.format_exc()), reused)


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


def is_current(run: Run, name: str, figure: Figure | Broken, say: Say) -> bool:
    """True where a result is stored that this state of the code computed."""
    if isinstance(figure, Broken):
        return False
    stored = load_stored(run, name, figure, say)
    same = stored is not None and stored.provenance.get("code") == identity.code_state(figure)
    if stored is not None and not same:
        say(f"  {name}: the code has changed since its result was stored; computing it again")
    return same
