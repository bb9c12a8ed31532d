"""Makes figures, one after another: load or compute, draw, judge, record, refresh the report.

A figure that fails, fails alone: its traceback goes to `logs/<name>.log`, its error into the report, the next starts.
An interrupt stops the run between two of these steps with everything finished so far on disk.
"""

import dataclasses
import math
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from experiments import ahead, checkpoints, pictures, record, report, store, style, unfinished
from experiments.figure import Broken, Figure, Registry, Unavailable, cost
from experiments.record import DONE, FAILED, UNAVAILABLE, Entry
from experiments.team import Team, calling
from rc_jax.ensemble import ProcessLost

THEMES = {"light": "", "dark": ".dark"}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run's choices. Presets, seeds but 0 and checkpoints each have a folder of their own: a page never mixes them.

    `checkpoints` are folders; they go to the figures whose Spec has a field of that name. A `quiet` run shows no
    progress and says nothing of figures that are well.
    """

    out: Path = Path("results")
    preset: str = "quick"
    seed: int = 0
    replot: bool = False
    checkpoints: tuple[str, ...] = ()
    quiet: bool = False

    @property
    def folder(self) -> Path:
        """Where this run's report, figures and data go."""
        parts = [self.preset]
        parts += [f"seed{self.seed}"] if self.seed else []
        parts += [checkpoints.tag(self.checkpoints)] if self.checkpoints else []
        return self.out / "-".join(parts)

    def shows(self, figure: Figure | Broken) -> bool:
        """Whether the figure belongs on this run's page: any does, but only those that read them with checkpoints."""
        return not self.checkpoints or checkpoints.read_by(figure)

    def spec(self, figure: Figure) -> Any:
        """The figure's preset with this run's seed and checkpoints."""
        own = {"checkpoints": self.checkpoints} if self.checkpoints and checkpoints.read_by(figure) else {}
        return dataclasses.replace(figure.PRESETS[self.preset], seed=self.seed, **own)

    def stem(self, name: str, figure: Figure) -> str:
        """The name of the figure's stored result."""
        return f"{name}-{store.fingerprint(name, self.spec(figure))}"

    def command(self, name: str) -> str:
        """The command that makes this one figure again."""
        words = ["python", "-m", "experiments", name, "--preset", self.preset]
        words += ["--seed", str(self.seed)] if self.seed else []
        words += [word for folder in self.checkpoints for word in ("--checkpoint", folder)]
        words += ["--out", str(self.out)] if self.out != Path("results") else []
        return shlex.join(words)


def make_all(
    run: Run, names: list[str], registry: Registry, package: str = "experiments.figures", team: Team | None = None
) -> Iterator[Entry]:
    """Make the named figures in order, yielding each entry once it is recorded and the report shows it.

    On two cores a second process computes the dear ones meanwhile: see `experiments.ahead`. In a team those whose
    ensembles all processes share come first: see `experiments.team`.
    """
    if team is not None:
        names = team.in_order(names, registry)
    store.tidy(run.folder)
    clock = Clock({name: cost(registry[name], run.preset) for name in names})
    stored = {name for name in names if _is_stored(run, name, registry[name])}
    with (
        ahead.helper(run, names, registry, package) if team is None else team as helper,
        tqdm(total=len(names), disable=run.quiet or None, bar_format=BAR, file=sys.stderr) as bar,
    ):
        for done, name in enumerate(_in_turn(run, names, registry, helper)):
            bar.set_description_str(f"{done} of {len(names)} figures, {clock.left()} left, now {name}")
            start = time.perf_counter()
            entry = make(run, name, registry[name])
            if entry.reused and name not in stored:  # by the second process, for this run
                entry = dataclasses.replace(entry, reused=False)
            refresh(run, registry, entry)
            clock.finish(name, time.perf_counter() - start, worked=entry.status == DONE and not entry.reused)
            bar.update()
            _say(_line(entry), quiet=run.quiet and entry.status != FAILED)
            yield entry


def _in_turn(run: Run, names: list[str], registry: Registry, helper: ahead.Helper) -> Iterator[str]:
    """The names, each while its figure is claimed by this process; what the other one is at comes when it is done.

    Figures that must run alone come last, when the other process has ended.
    """
    last = [name for name in names if ahead.alone(registry, name)] if helper.working else []
    waiting = [name for name in names if name not in last]
    while waiting:
        for name in waiting:
            figure = registry[name]
            held = None if isinstance(figure, Broken) else helper.claim(run.stem(name, figure))
            if held is None and not isinstance(figure, Broken):
                continue
            waiting.remove(name)
            try:
                yield name
            finally:
                if held is not None:
                    held.close()
            break
        else:
            time.sleep(0.1)
    helper.stop()
    yield from last


def _is_stored(run: Run, name: str, figure: Figure | Broken) -> bool:
    return not isinstance(figure, Broken) and (run.folder / "data" / f"{run.stem(name, figure)}.json").exists()


BAR = "{desc} |{bar:20}| {elapsed} gone"


class Clock:
    """Time left: the minutes that figures state, times how long the ones computed so far took against theirs."""

    def __init__(self, minutes: Mapping[str, float]):
        self.minutes = {name: value if math.isfinite(value) else 0.0 for name, value in minutes.items()}
        self.stated = self.taken = 0.0

    def finish(self, name: str, seconds: float, *, worked: bool) -> None:
        """Count a figure as finished; one that was loaded or failed says nothing about the others."""
        stated = self.minutes.pop(name)
        if worked:
            self.stated, self.taken = self.stated + stated, self.taken + seconds / 60

    def left(self) -> str:
        """About how long the figures not finished will take."""
        seconds = 60 * sum(self.minutes.values()) * (self.taken / self.stated if self.stated else 1.0)
        return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {seconds:.0f} s"


def make(run: Run, name: str, figure: Figure | Broken) -> Entry:
    """One figure, from its spec to its entry in the ledger; never raises but for an interrupt."""
    common: dict[str, Any] = {"name": name, "title": name, "command": run.command(name)}
    try:
        if isinstance(figure, Broken):
            raise ImportError(figure.error)
        about, code = figure.ABOUT, store.code_state(figure)
        common |= {"title": about.title, "topic": about.topic, "caption": about.caption}
        common |= {"formula": about.formula, "code": code}
        stored, reused = obtain(run, name, figure, code)
        undrawn = draw(run, name, figure, stored.data)
        claims = tuple(figure.claims(stored.data))
        return Entry(
            **{**common, "code": stored.provenance["code"]},
            status=DONE,
            claims=claims,
            warnings=(*store.nonfinite(stored.data), *undrawn),
            provenance=stored.provenance,
            reused=reused,
        )
    except Unavailable as reason:
        forget(run, name)
        return Entry(**common, status=UNAVAILABLE, reason=str(reason))
    except ProcessLost:
        raise
    except Exception as error:
        forget(run, name)
        trace = error.msg if isinstance(figure, Broken) and isinstance(error, ImportError) else traceback.format_exc()
        store.write(run.folder / "logs" / f"{name}.log", trace)
        reason = _last_line(trace) if isinstance(figure, Broken) else _in_a_line(error)
        return Entry(**common, status=FAILED, reason=reason)


def obtain(run: Run, name: str, figure: Figure, code: str) -> tuple[store.Stored, bool]:
    """The result and whether it was loaded: stored by this state of the code (to replot, by any), else computed."""
    stored = stored_result(run, name, figure)
    if stored and (run.replot or stored.provenance.get("code") == code):
        return stored, True
    if run.replot:
        raise FileNotFoundError(f"no stored result to draw again: run `{run.command(name)}` first")
    if stored:
        _say(f"  {name}: the code has changed since its result was stored; computing it again", quiet=run.quiet)
    spec = run.spec(figure)
    from experiments.provenance import provenance

    with unfinished.kept(unfinished_folder(run, name, figure, code)), calling(name):
        data, seconds = compute(figure, spec)
        store.save(run.folder / "data", run.stem(name, figure), data, provenance(name, spec, seconds, code))
    stored = store.load(run.folder / "data", run.stem(name, figure))
    assert stored is not None
    return stored, False


def unfinished_folder(run: Run, name: str, figure: Figure, code: str) -> Path:
    """Where a figure leaves its work until it is done."""
    return run.folder / "unfinished" / f"{run.stem(name, figure)}-{code}"


def stored_result(run: Run, name: str, figure: Figure) -> store.Stored | None:
    """A stored result that can be trusted; a damaged one is reported and counts as none."""
    try:
        return store.load(run.folder / "data", run.stem(name, figure))
    except store.Damaged as reason:
        _say(f"  {name}: the stored result is damaged ({reason})", quiet=run.quiet)
        return None


def compute(figure: Figure, spec: Any) -> tuple[dict[str, np.ndarray], float]:
    """Run `compute` in the spec's precision; its arrays and the seconds it took.

    Its compiled programs serve no other figure and are let go: each holds maps of memory, of which Linux grants a
    process 65 530, and past them XLA crashes.
    """
    import jax

    start = time.perf_counter()
    try:
        with jax.enable_x64(spec.dtype == "float64"):
            data = store.numbers(figure.compute(spec))
    finally:
        jax.clear_caches()
    return data, time.perf_counter() - start


def draw(run: Run, name: str, figure: Figure, data: Mapping[str, np.ndarray]) -> list[str]:
    """Draw a figure, PNG in light and dark and a PDF in light, and its animation where it has one, with its warnings.

    Only `plot` must succeed: without its animation a figure is still a figure.
    """
    for theme, suffix in THEMES.items():
        with style.theme(theme):
            drawing = figure.plot(data)
            still = pictures.png(drawing)
            store.write(run.folder / f"{name}{suffix}.png", still)
            store.write(run.folder / pictures.FOLDER / f"{name}{suffix}.webp", pictures.for_report(still))
            if theme == "light":
                drawing.set_layout_engine("none")  # the first picture has placed everything; the PDF is the same
                store.write(run.folder / f"{name}.pdf", pictures.pdf(drawing))
    try:
        _animate(run, name, figure, data)
    except Exception as error:
        _remove(run, name, ANIMATED)
        store.write(run.folder / "logs" / f"{name}.log", traceback.format_exc())
        return [f"the animation: {_in_a_line(error)} (see logs/{name}.log)"]
    return []


def _animate(run: Run, name: str, figure: Figure, data: Mapping[str, np.ndarray]) -> None:
    """Write a figure's animation in light and dark, each with the picture it ends with; remove one that it had."""
    animate = getattr(figure, "animate", None)
    if animate is None:
        return _remove(run, name, ANIMATED)
    from experiments import animation

    for theme, suffix in THEMES.items():
        with style.theme(theme):
            content = animation.encode(animate(data))
        store.write(run.folder / f"{name}{suffix}.webp", content)
        store.write(run.folder / pictures.FOLDER / f"{name}.end{suffix}.webp", animation.last_frame(content))


STILL = (".png", ".dark.png", ".pdf", f"{pictures.FOLDER}/.webp", f"{pictures.FOLDER}/.dark.webp")
ANIMATED = (".webp", ".dark.webp", f"{pictures.FOLDER}/.end.webp", f"{pictures.FOLDER}/.end.dark.webp")


def _remove(run: Run, name: str, endings: tuple[str, ...]) -> None:
    for ending in endings:
        folder, _, suffix = ending.rpartition("/")
        (run.folder / folder / f"{name}{suffix}").unlink(missing_ok=True)


def forget(run: Run, name: str) -> None:
    """Remove pictures of a figure that an earlier run drew and this one could not."""
    _remove(run, name, STILL + ANIMATED)


def refresh(run: Run, registry: Registry, entry: Entry) -> None:
    """Put a new entry beside those of earlier runs, in `claims.json` and in the report."""
    known = {**record.read(run.folder), entry.name: entry}
    entries = [known[name] for name in registry if name in known]
    record.write(run.folder, entries, preset=run.preset, seed=run.seed, version=store.package_version())
    page = report.render(run, registry, entries)
    store.write(run.folder / report.FILE, page)


def _say(text: str, *, quiet: bool) -> None:
    """A line on stderr, above the bar."""
    if not quiet:
        tqdm.write(text, file=sys.stderr)


def _line(entry: Entry) -> str:
    if entry.status == DONE:
        how = "loaded" if entry.reused else f"computed in {entry.provenance['seconds']:.1f} s"
        return "\n".join([f"✓ {entry.name}: {how}", *(f"  ! {warning}" for warning in entry.warnings)])
    return f"{'✗' if entry.status == FAILED else '–'} {entry.name}: {entry.status}: {entry.reason}"


def _in_a_line(error: Exception) -> str:
    """An error without its notes, of which JAX adds one about tracebacks."""
    message = next((line.strip() for line in f"{error}".splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _last_line(trace: str) -> str:
    lines = [line for line in trace.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "unknown error"
