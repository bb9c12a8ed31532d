"""The file `claims.json` of a folder: what is known about each figure, read again by later runs and by the report."""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.ledger.claims import OWN, Claim, RowType, interval_text, measured_text, who
from experiments.ledger.decision import Verdict
from experiments.ledger.literature import WORKS
from rc_jax._numerics import files

FILE = "claims.json"
# The fields that a claim has in the file beside its own, for programs that read it.
ADDED = ("shown", "interval_shown", "who", "topic", "figure", "command")
FLAGS = ("formula", "after_result", "predicted")  # of a claim
DONE, FAILED, UNAVAILABLE = "done", "failed", "unavailable"


@dataclasses.dataclass(frozen=True)
class Entry:
    """The outcome of one figure: its claims when it is done, or why it is not."""

    name: str
    title: str
    status: str
    command: str
    topic: str = ""  # a key of `figure.TOPICS`; none where the file of the figure cannot be read
    caption: str = ""
    formula: str = ""
    reason: str = ""
    claims: tuple[Claim, ...] = ()
    warnings: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    old: bool = False  # other code computed its numbers than there is now; known in a run only
    reused: bool = False  # in this run, loaded rather than computed


class Damaged(Exception):
    """A ledger that exists and cannot be read."""


def read(folder: Path) -> dict[str, Entry]:
    """The entries of earlier runs into the folder; none where there is no ledger.

    Raises:
        Damaged: the ledger cannot be read.
    """
    try:
        content = strict((folder / FILE).read_text(encoding="utf-8"))
        return {name: _entry(name, fields) for name, fields in content["figures"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise Damaged(f"{folder / FILE} cannot be read ({type(error).__name__})") from error


def write(folder: Path, entries: Iterable[Entry], **about: Any) -> None:
    """Write every entry with its claims, and the claims' counts, whole or not at all."""
    entries = list(entries)
    figures: dict[str, Any] = {}
    for entry in entries:
        fields = dataclasses.asdict(entry) | {"claims": plain_claims(entry)}
        figures[entry.name] = {key: value for key, value in fields.items() if key not in ("name", "old", "reused")}
    files.write_whole(
        folder / FILE,
        json.dumps(
            {**about, "counts": counts(entries), "figures": figures}, indent=1, ensure_ascii=False, allow_nan=False
        ),
    )


def counts(entries: Iterable[Entry]) -> dict[str, dict[str, int]]:
    """How many claims have each verdict: by type, formulas apart.

    Those with a criterion after the result, and those that were predicted, are counted once more by themselves.
    """
    found: dict[str, Counter[str]] = {}
    for claim in (claim for entry in entries for claim in entry.claims):
        name = f"{claim.type}, {'formula' if claim.formula else 'measured'}"
        found.setdefault(name, Counter())[claim.verdict] += 1
        if claim.after_result:
            found.setdefault(f"{name}, criterion after the result", Counter())[claim.verdict] += 1
        if claim.predicted:
            found.setdefault(f"{name}, predicted before the run", Counter())[claim.verdict] += 1
    return {name: {str(verdict): number for verdict, number in sorted(found[name].items())} for name in sorted(found)}


def strict(text: str) -> Any:
    """What strict JSON says, in which NaN and Infinity are no words.

    Raises:
        ValueError: it is no such text.
    """

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number")

    return json.loads(text, parse_constant=refuse)


def checked(provenance: Any) -> dict[str, Any]:
    """A provenance that was read from a file: a dict of texts, but for the spec, the seconds and a commit or none.

    Raises:
        TypeError, ValueError, OverflowError: it is something else.
    """
    others: dict[str, Any] = {"spec": dict, "seconds": int | float, "commit": str | None}
    if not isinstance(provenance, dict):
        raise TypeError("it is not a dict")
    for name, value in provenance.items():
        if not isinstance(value, others.get(name, str)) or isinstance(value, bool):
            raise TypeError(f"{name} is of the wrong type")
    if not math.isfinite(provenance.get("seconds", 0.0)):
        raise ValueError("the seconds are not finite")
    return provenance


def plain_claims(entry: Entry) -> list[dict[str, Any]]:
    """The entry's claims for JSON, as they stand in the file."""
    return [
        {
            **{key: _json(value) for key, value in dataclasses.asdict(claim).items()},
            "interval": [[_json(end) for end in ends] for ends in claim.interval],
            "shown": measured_text(claim),
            "interval_shown": interval_text(claim),
            "who": who(claim),
            "topic": entry.topic,
            "figure": entry.name,
            "command": entry.command,
        }
        for claim in entry.claims
    ]


def _json(value: Any) -> Any:
    """A value as JSON has it: `null` for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _entry(name: str, fields: dict[str, Any]) -> Entry:
    """An entry from its fields in the file.

    Raises:
        TypeError, ValueError, KeyError: a field is missing or of another type than this module writes.
    """
    claims = tuple(_claim(claim) for claim in fields["claims"])
    entry = Entry(name=name, **{**fields, "claims": claims, "warnings": tuple(fields["warnings"])})
    checked(entry.provenance)
    given = dataclasses.asdict(entry)
    _texts([value for key, value in given.items() if key not in ("claims", "warnings", "provenance", "old", "reused")])
    _texts(entry.warnings)
    return entry


def _claim(fields: dict[str, Any]) -> Claim:
    """A claim from its fields in the file, where `null` is the number that JSON has no word for."""
    own = {key: value for key, value in fields.items() if key not in ADDED}
    own["type"], own["verdict"] = RowType(own["type"]), Verdict(own["verdict"])
    own["measured"] = math.nan if own["measured"] is None else own["measured"]
    own["interval"] = tuple(
        (-math.inf if low is None else low, math.inf if high is None else high) for low, high in own["interval"]
    )
    own["neighbours"] = tuple(own["neighbours"])
    for flag in ("after_result", "predicted"):
        own.setdefault(flag, False)  # of ledgers that do not have it yet
    if not all(isinstance(own[flag], bool) for flag in FLAGS):
        raise TypeError(f"one of {', '.join(FLAGS)} is of another type")
    numbers = [end for ends in own["interval"] for end in ends]
    numbers += [own[key] for key in ("measured", "standard_error") if not isinstance(own[key], str | None)]
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        raise TypeError("a number is of another type")
    for number in numbers:
        float(number)  # one of too many digits is none that this module wrote
    others = ("measured", "standard_error", "interval", "neighbours", *FLAGS)
    _texts([value for key, value in own.items() if key not in others])
    if isinstance(own["standard_error"], str) or not {own["source"], *own["neighbours"]} <= {OWN, *WORKS}:
        raise ValueError("a standard error is a text, or a source is not known")
    return Claim(**own)


def _texts(values: Iterable[Any]) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError("a text is of another type")


def duplicates(entries: Iterable[Entry]) -> list[str]:
    """Keys that more than one claim uses."""
    keys = [claim.key for entry in entries for claim in entry.claims]
    return sorted({key for key in keys if keys.count(key) > 1})
