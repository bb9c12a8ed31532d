"""The messages of a run while it works: a bar on a terminal, a line for each step in a log."""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from tqdm import tqdm

from experiments.ledger.record import DONE, FAILED, Entry
from rc_jax._numerics.text import printable

TRUST = 0.5  # minutes that count as taken just as stated
TICK = 1.0  # seconds between two looks at the clock, so that a long figure does not look like one that hangs
BAR = "{desc} |{bar:20}| {elapsed} gone"


class Clock:
    """Time left: the minutes that figures state, times how long the run took so far against those it has computed."""

    def __init__(self, minutes: Mapping[str, float]):
        self.minutes = {name: value if math.isfinite(value) else 0.0 for name, value in minutes.items()}
        self.stated = 0.0
        self.begun = time.monotonic()

    def finish(self, name: str, *, worked: bool) -> None:
        """Count a figure as finished; one that was loaded or failed says nothing about the others."""
        stated = self.minutes.pop(name, 0.0)
        self.stated += stated if worked else 0.0

    def skip(self, name: str) -> None:
        """Count no time for a figure that is loaded."""
        self.minutes[name] = 0.0

    def left(self) -> str:
        """About how long the figures not finished will take."""
        taken = (time.monotonic() - self.begun) / 60
        pace = (taken + TRUST) / (self.stated + TRUST)
        seconds = 60 * sum(self.minutes.values()) * pace
        return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {seconds:.0f} s"


class Progress:
    """The bar, and the lines above it; a quiet one says only what fails."""

    def __init__(self, minutes: Mapping[str, float], *, quiet: bool):
        self.clock, self.quiet = Clock(minutes), quiet
        self.total, self.done, self.now = len(minutes), 0, list[str]()
        self.bar = tqdm(total=self.total, disable=quiet or None, bar_format=BAR, file=sys.stderr)

    def __enter__(self) -> "Progress":
        self.through, ticking = threading.Event(), not self.bar.disable
        self.ticker = threading.Thread(target=self._tick, daemon=True) if ticking else None
        if self.ticker:
            self.ticker.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.through.set()
        if self.ticker:
            self.ticker.join()
        self.bar.close()

    def _tick(self) -> None:
        while not self.through.wait(TICK):
            with contextlib.suppress(OSError):  # its reader has gone
                self.bar.refresh()

    def say(self, text: str, *, always: bool = False) -> None:
        """A line on stderr."""
        if always or not self.quiet:
            with contextlib.suppress(OSError):  # its reader has gone, which is no reason to stop
                tqdm.write(printable(text), file=sys.stderr)

    def start(self, name: str) -> None:
        """A figure is being computed."""
        self.now.append(name)
        if self.bar.disable:
            self.say(f"  {name}: begun")
        self._show()

    def finish(self, entry: Entry) -> None:
        """A figure is through, well or not."""
        self.done += 1
        self.now = [name for name in self.now if name != entry.name]
        self.clock.finish(entry.name, worked=entry.status == DONE and not entry.reused)
        left = f" ({self.done} of {self.total}, {self.clock.left()} left)" if self.bar.disable else ""
        self.say(line(entry) + (left if entry.status != FAILED else ""), always=entry.status == FAILED)
        self.bar.update()
        self._show()

    def _show(self) -> None:
        now = f", now {', '.join(self.now)}" if self.now else ""
        self.bar.set_description_str(f"{self.done} of {self.total} figures, {self.clock.left()} left{now}")


def line(entry: Entry) -> str:
    """The outcome of a figure."""
    if entry.status == DONE:
        how = "loaded" if entry.reused else f"computed in {entry.provenance['seconds']:.1f} s"
        return "\n".join([*(f"  ! {entry.name}: {warning}" for warning in entry.warnings), f"✓ {entry.name}: {how}"])
    return f"{'✗' if entry.status == FAILED else '–'} {entry.name}: {entry.status}: {entry.reason}"
