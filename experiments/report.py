"""The report: one page that needs nothing but itself, with every claim and, under it, every figure.

Pictures are inside the page, light and dark; there is no script and nothing is fetched. A verdict is told by a symbol
and a word as well as by colour. Rows and figures of earlier runs into the same folder stay until made again.
"""

import base64
import functools
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from experiments import checkpoints, record, store
from experiments.figure import Registry
from experiments.ledger import Verdict, show
from experiments.record import DONE, FAILED, UNAVAILABLE, Entry
from experiments.terminal import SYMBOL

if TYPE_CHECKING:
    from experiments.runner import Run

FILE = "report.html"
SHORT = {verdict: verdict.name.lower().replace("_", "-") for verdict in Verdict}
PROVENANCE = (
    "date",
    "seconds",
    "device",
    "precision",
    "version",
    "commit",
    "python",
    "jax",
    "jaxlib",
    "numpy",
    "platform",
)


def render(run: "Run", registry: Registry, entries: Sequence[Entry]) -> str:
    """The whole page as text."""
    counts = Counter(claim.verdict for entry in entries for claim in entry.claims)
    latest = max((entry.provenance.get("date", "") for entry in entries), default="")
    known = {entry.name for entry in entries}
    return template().render(
        run=run,
        version=store.package_version(),
        latest=latest.replace("T", " ").replace("+00:00", " UTC"),
        entries=entries,
        figures=[_figure(run, registry, entry) for entry in entries],
        verdicts=[(verdict, counts[verdict]) for verdict in Verdict if counts[verdict]],
        total=sum(counts.values()),
        failed=[entry for entry in entries if entry.status == FAILED],
        pending=[(name, run.command(name)) for name in registry if name not in known and run.shows(registry[name])],
        checkpoints=checkpoints.labels(run.checkpoints),
        duplicates=record.duplicates(entries),
        symbol=SYMBOL,
        short=SHORT,
        show=show,
        measured=record.measured,
        DONE=DONE,
        FAILED=FAILED,
        UNAVAILABLE=UNAVAILABLE,
    )


@functools.cache
def template() -> jinja2.Template:
    """The page's template, from the file beside this one; everything put into it is escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options: dict[str, Any] = {"autoescape": True, "undefined": jinja2.StrictUndefined}
    return jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, **options).get_template(
        "report.html.j2"
    )


def _figure(run: "Run", registry: Registry, entry: Entry) -> dict[str, Any]:
    """What the template shows of one figure."""
    light, dark = (picture(run.folder / f"{entry.name}{suffix}.png") for suffix in ("", ".dark"))
    provenance = {key: entry.provenance[key] for key in PROVENANCE if entry.provenance.get(key) is not None}
    fields = [(key, value) for key, value in entry.provenance.get("spec", {}).items()]
    return {
        "entry": entry,
        "light": light,
        "dark": dark or light,
        "provenance": provenance,
        "spec": ", ".join(f"{key} = {value}" for key, value in fields),
        "old": entry.status == DONE and entry.code != store.code_state(registry[entry.name]),
    }


def picture(path: Path) -> dict[str, Any] | None:
    """A PNG as a data address with its size in pixels; `None` where there is none."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    width, height = struct.unpack(">II", content[16:24])
    return {"src": f"data:image/png;base64,{base64.b64encode(content).decode()}", "width": width, "height": height}
