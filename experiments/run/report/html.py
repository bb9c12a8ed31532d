"""The report: one page that needs nothing but itself: small pictures first, then every row, then every figure.

Pictures are inside the page, light and dark; nothing is fetched. Its one script filters the claims, and the page is
whole without it. A verdict is told by a symbol and a word as well as by colour. Rows and figures of earlier runs into
the same folder stay until made again.
"""

import base64
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import jinja2
from latex2mathml import converter
from PIL import Image

import rc_jax
from experiments.ledger import record
from experiments.ledger.claims import RowType, interval_text, measured_text, neighbours_text, who
from experiments.ledger.decision import SYMBOL, Verdict
from experiments.ledger.formulas import MARKED, plain
from experiments.ledger.record import DONE, FAILED, UNAVAILABLE, Entry
from experiments.ledger.sections import by_topic, headline, sections
from experiments.lib import checkpoints
from experiments.lib.figure import Registry
from experiments.run import store
from experiments.run.choices import Run
from experiments.run.report import pictures
from experiments.run.report.terminal import worded

FILE = "report.html"
SMALL = 560  # pixels across a small picture
LONG = 40  # characters of a formula that a telephone shows in one line
SHORT = {verdict: verdict.name.lower().replace("_", "-") for verdict in Verdict}
PROVENANCE = (
    *("date", "seconds", "device", "precision", "xla_flags", "version", "commit"),
    *("python", "jax", "jaxlib", "numpy", "platform"),
)
SCRIPT = Path(__file__).with_name("filter.js").read_text(encoding="utf-8")


def write(run: Run, registry: Registry, entries: Mapping[str, Entry]) -> None:
    """Write the page of all entries that there are, in the order of the registry."""
    store.write(run.folder / FILE, render(run, registry, list(entries.values())))


def render(run: Run, registry: Registry, entries: Sequence[Entry]) -> str:
    """The whole page as text, figures by topic; all that is put into the template is escaped, here or by `typeset`."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options: dict[str, Any] = {"autoescape": True, "undefined": jinja2.StrictUndefined}
    environment = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, **options)

    topics = by_topic(entries)
    entries = [entry for _, group in topics for entry in group]
    of_topic = {entry.name: title for title, group in topics for entry in group}
    known = {entry.name for entry in entries}
    claims = [claim for entry in entries for claim in entry.claims]
    counts = Counter(claim.verdict for claim in claims)
    latest = max((entry.provenance.get("date", "") for entry in entries), default="")

    # The lists to filter by: name, label, and value and text of each option.
    judged = {entry.topic: title for title, group in topics for entry in group if entry.claims}
    sources, types = sorted({who(claim) for claim in claims}, key=str.casefold), {claim.type for claim in claims}
    choices = [
        ("type", "Type", [(each, each) for each in RowType if each in types]),
        ("topic", "Topic", list(judged.items())),
        ("source", "Source", [(source, source) for source in sources]),
    ]
    return environment.get_template("template.html.j2").render(
        run=run,
        version=rc_jax.__version__,
        latest=latest.replace("T", " ").replace("+00:00", " UTC"),
        figures=[_figure(run, entry, of_topic[entry.name]) for entry in entries],
        verdicts=[(verdict, counts[verdict]) for verdict in Verdict if counts[verdict]],
        total=len(claims),
        failed=[entry for entry in entries if entry.status == FAILED],
        pending=[(name, run.command(name)) for name in registry if name not in known and run.shows(registry[name])],
        checkpoints=checkpoints.labels(run.checkpoints),
        duplicates=record.duplicates(entries),
        sections=sections(entries),
        typeset=typeset,
        headline=headline(claims),
        choices=choices,
        script=SCRIPT,
        anchor=anchor,
        neighbours=neighbours_text,
        who=who,
        symbol=SYMBOL,
        worded=worded,
        short=SHORT,
        interval=interval_text,
        measured=measured_text,
        DONE=DONE,
        FAILED=FAILED,
        UNAVAILABLE=UNAVAILABLE,
    )


def anchor(title: str) -> str:
    """A heading as GitHub and Sphinx write it in an address.

    Example:
        >>> anchor("Skips, MLPs and norms")
        'skips-mlps-and-norms'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def typeset(text: str) -> str:
    r"""A text, escaped, with its formulas in MathML, which browsers draw without a script.

    Example:
        >>> print(typeset(r"at $\gamma$ < 5"))
        at <math alttext="γ" display="inline"><mrow><mi>&#x003B3;</mi></mrow></math> &lt; 5
    """
    parts = MARKED.split(text)
    return "".join(mathml(part) if at % 2 else escape(part) for at, part in enumerate(parts))


def mathml(formula: str) -> str:
    """A formula in LaTeX for a page without MathJax, with a plain one for who cannot see it and for the filter.

    Browsers do not break a formula, so that a long one is several, with room for a new line between its factors.
    """
    factors = [""]
    for piece in re.split(r"(\\thinspace)", formula):
        braces = factors[-1].count("{") - factors[-1].count("}")
        if piece == r"\thinspace" and not braces and len(formula) > LONG:
            factors.append("")
        else:
            factors[-1] += piece
    return "\u2009".join(map(_drawn, factors))


def _drawn(formula: str) -> str:
    words = f'alttext="{escape(plain(f"${formula}$"))}"'
    drawn = converter.convert(formula).replace("thinmathspace", "0.17em")  # browsers do not know it by its name
    return drawn.replace('xmlns="http://www.w3.org/1998/Math/MathML"', words, 1)


def _figure(run: Run, entry: Entry, topic: str) -> dict[str, Any]:
    """The names that the template uses of one figure."""
    files = [run.folder / pictures.FOLDER / f"{entry.name}{suffix}.webp" for suffix in ("", ".dark")]
    (light, dark), (small, small_dark) = ([read(path) for path in files] for read in (picture, thumbnail))
    counts = Counter(claim.verdict for claim in entry.claims)
    spec = entry.provenance.get("spec", {})
    return {
        "entry": entry,
        "light": light,
        "dark": dark or light,
        "small": small,
        "small_dark": small_dark or small,
        "topic": topic,
        "verdicts": [(verdict, counts[verdict]) for verdict in Verdict if counts[verdict]],
        "provenance": {key: entry.provenance[key] for key in PROVENANCE if entry.provenance.get(key) is not None},
        "spec": ", ".join(f"{key} = {value}" for key, value in spec.items()),
        "old": entry.old,
    }


def thumbnail(path: Path) -> dict[str, Any] | None:
    """A small copy of a picture, the same way; a page of fifty grows by a megabyte."""
    try:
        with Image.open(path) as image:
            small = image.convert("RGB").resize(
                (SMALL, round(image.height * SMALL / image.width)), Image.Resampling.LANCZOS
            )
    except OSError:
        return None
    buffer = io.BytesIO()
    small.save(buffer, format="WEBP", quality=70, method=4)
    return _inside(buffer.getvalue(), small.size, "image/webp")


def picture(path: Path) -> dict[str, Any] | None:
    """A picture as a data address with its size in pixels; `None` where there is none that can be read."""
    try:
        content = path.read_bytes()
        with Image.open(io.BytesIO(content)) as image:
            (width, height), kind = image.size, Image.MIME[str(image.format)]
    except (OSError, KeyError):
        return None
    return _inside(content, (width, height), kind)


def _inside(content: bytes, size: tuple[int, int], kind: str) -> dict[str, Any]:
    return {"src": f"data:{kind};base64,{base64.b64encode(content).decode()}", "width": size[0], "height": size[1]}
