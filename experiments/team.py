"""Several processes, one report: `python -m experiments --distributed`.

Figures whose ensembles all processes can share come first: process 0 says which is next, all compute it, each its share
of the samples. The others are then shared out: a figure belongs to the process that claims it, in a folder that all
see; where each has a folder of its own, process 0 makes every figure itself. Only process 0 stores what was computed
together, draws, judges and writes the report. What measures time comes last, when the others have nothing left.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from experiments import ahead, store, unfinished
from experiments.figure import Broken, Figure, Registry
from rc_jax import ensemble
from rc_jax.ensemble.processes import exchange

LISTENING = b"listening"
NEXT, NO_MORE = b"next figure ", b"no more figures"


class Team(ahead.Helper):
    """What process 0 knows of the others, in the place of the second process of a run on one machine."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.together: set[str] = set()
        self.busy, self.released = True, False

    def __enter__(self) -> "Team":
        self._token = _TEAM.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _TEAM.reset(self._token)

    @property
    def working(self) -> bool:
        """Whether other processes may still be at a figure."""
        return self.busy

    def stop(self) -> None:
        """Wait until they have nothing left."""
        if self.busy:
            self.release()
            exchange(NO_MORE)
            self.busy = False
            ahead.forget_claims(self.folder)

    def in_order(self, names: Sequence[str], registry: Registry) -> list[str]:
        """The figures computed together, then the others."""
        self.together = {name for name in names if shares(registry[name])}
        return sorted(names, key=lambda name: name not in self.together)

    def claim(self, stem: str) -> Any:
        """A figure's claim; before the first that is not computed together, the others are let go to theirs."""
        if stem.rpartition("-")[0] not in self.together:
            self.release()
        return super().claim(stem)

    def announce(self, name: str) -> bool:
        """Have all compute a figure, if it is one of those; one that is not listening is called again."""
        if name not in self.together:
            return False
        _call(NEXT + name.encode())
        return True

    def release(self) -> None:
        """Nothing more is computed together."""
        if not self.released:
            self.released = True
            self.together = set()
            _call(NO_MORE)


_TEAM: ContextVar[Team | None] = ContextVar("team", default=None)


@contextmanager
def calling(name: str) -> Iterator[None]:
    """Around the computing of a figure in process 0, or in a run of one process, where it does nothing."""
    team = _TEAM.get()
    together = team is not None and team.announce(name)
    with contextlib.nullcontext() if together else ensemble.alone():
        yield


def _call(word: bytes) -> None:
    while any(answer != LISTENING for answer in exchange(word)[1:]):
        pass


def _heard() -> str | None:
    """The next figure, once every other process listens: one may still be at a figure that failed here."""
    while True:
        word, *others = exchange(LISTENING)
        if all(other == LISTENING for other in others) and word == NO_MORE:
            return None
        if all(other == LISTENING for other in others) and word.startswith(NEXT):
            return word.removeprefix(NEXT).decode()


def shares(figure: Figure | Broken) -> bool:
    """Whether a figure runs ensembles: it, or a file of `experiments` that it imports, says so."""
    source, seen = getattr(figure, "__file__", None), set()
    waiting = [] if isinstance(figure, Broken) or source is None else [Path(source)]
    while waiting:
        path = waiting.pop()
        if "ensemble.run(" in path.read_text(encoding="utf-8"):
            return True
        seen.add(path)
        waiting += [each for each in store._helpers(str(path)) if each not in seen and each.parent.name == "figures"]
    return False


def follow(run: Any, names: Sequence[str], registry: Registry) -> None:
    """What every process but 0 does: compute what is announced, then what nobody has claimed, the dearest first."""
    from experiments import runner

    while (name := _heard()) is not None:
        figure = registry[name]
        assert not isinstance(figure, Broken)
        folder = runner.unfinished_folder(run, name, figure, store.code_state(figure))
        try:
            with ensemble.kept(unfinished.parts(folder)):
                runner.compute(figure, run.spec(figure))
        except ensemble.ProcessLost:
            raise
        except Exception:  # process 0 meets the same error, and reports it
            continue
    for name in reversed(names):
        figure = registry[name]
        if isinstance(figure, Broken) or shares(figure) or ahead.alone(registry, name):
            continue
        held = ahead.claim(run.folder, run.stem(name, figure))
        if held is None:
            continue
        try:
            runner.obtain(run, name, figure, store.code_state(figure))
        except Exception:
            continue
        finally:
            held.close()
    exchange(LISTENING)
