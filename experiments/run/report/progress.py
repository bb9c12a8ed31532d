"""The messages of a run while it works: a bar on a terminal, a line for each step in a log."""

import contextlib
import math
import sys
from collections.abc import Mapping
from types import TracebackType

from tqdm import tqdm

from experiments.ledger.record import DONE, FAILED, Entry
from rc_jax._numerics.text import printable

BAR = "{desc} |{bar:20}| {elapsed} gone"


class Progress:
    """The bar, and the lines above it; a quiet one says only what fails.

    Args:
        minutes: What each figure states that it takes; a figure that is loaded takes none.
        quiet: Show no bar.
    """

    def __init__(self, minutes: Mapping[str, float], *, quiet: bool):
        self.minutes = {name: value if math.isfinite(value) else 0.0 for name, value in minutes.items()}
        self.total, self.done, self.now, self.quiet = len(minutes), 0, list[str](), quiet
        self.bar = tqdm(total=self.total, disable=quiet or None, bar_format=BAR, file=sys.stderr)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.bar.close()

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
        self.show()

    def finish(self, entry: Entry) -> None:
        """A figure is through, well or not."""
        self.done += 1
        self.minutes.pop(entry.name, None)
        self.now = [name for name in self.now if name != entry.name]
        left = f" ({self.done} of {self.total}, {self.left()} left)" if self.bar.disable else ""
        self.say(line(entry) + (left if entry.status != FAILED else ""), always=entry.status == FAILED)
        self.bar.update()
        self.show()

    def left(self) -> str:
        """How long the figures that are left state that they take, on two cores."""
        minutes = sum(self.minutes.values())
        return f"about {minutes:.0f} min" if minutes >= 1.5 else f"about {60 * minutes:.0f} s"

    def show(self) -> None:
        """Draw the bar; a run does so every second, so that a long figure does not look like one that hangs."""
        now = f", now {', '.join(self.now)}" if self.now else ""
        with contextlib.suppress(OSError):  # its reader has gone
            self.bar.set_description_str(f"{self.done} of {self.total} figures, {self.left()} left{now}")


def line(entry: Entry) -> str:
    """The outcome of a figure."""
    if entry.status == DONE:
        how = "loaded" if entry.reused else f"computed in {entry.provenance['seconds']:.1f} s"
        return "\n".join([*(f"  ! {entry.name}: {warning}" for warning in entry.warnings), f"✓ {entry.name}: {how}"])
    return f"{'✗' if entry.status == FAILED else '–'} {entry.name}: {entry.status}: {entry.reason}"
