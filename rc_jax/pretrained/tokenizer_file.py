"""The text of a tokenizer.json, once it is known that the package tokenizers can read it without using up the memory.

Its compiled code ends the process where memory is short, so that sizes are multiplied here before it sees them.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rc_jax.pretrained.config import read_bytes

MOST_GROWTH = 4096  # of a text, by all replacements one after another
MOST_FRAME = 100_000  # ids that a template puts around a text, and letters that are put before it


def tokenizer_text(file: Path) -> str:
    """The text of the file."""
    text = read_bytes(file).decode()
    values = json.loads(text)
    growth, frame, before = 1.0, 0, 0
    for part in _objects(values):
        if part.get("type") == "Replace":
            content, pattern = (part.get(name) for name in ("content", "pattern"))
            replaced = pattern.get("String") if isinstance(pattern, dict) else None
            length = len(replaced) if isinstance(replaced, str) else 0  # a regular expression may match nothing
            growth *= max(1.0, len(content) / length if length else len(content) + 1) if isinstance(content, str) else 1
        if part.get("type") == "Prepend":
            before += len(str(part.get("prepend")))
        if part.get("type") == "Precompiled":
            _check_trie(part.get("precompiled_charsmap"))
        if part.get("type") == "TemplateProcessing":
            ids = max((_length(each.get("ids")) for each in _objects(part.get("special_tokens"))), default=0)
            frame = max(frame, ids * (_length(part.get("single")) + _length(part.get("pair"))))
    if growth > MOST_GROWTH:
        raise ValueError(f"replacements that make a text up to {growth:.3g} times as long, at most {MOST_GROWTH}")
    if frame > MOST_FRAME:
        raise ValueError(f"a template of {frame} ids, at most {MOST_FRAME}")
    if before > MOST_FRAME:
        raise ValueError(f"{before} letters that are put before a text, at most {MOST_FRAME}")
    return text


def _check_trie(table: Any) -> None:
    """The first four bytes of a table of letters are the size of its first part, for which memory is asked."""
    if isinstance(table, str):
        size = int.from_bytes(base64.b64decode(table[:8])[:4], "little")
        if size > len(table):
            raise ValueError(f"a table of letters of {len(table)} bytes, {size} of which are its first part")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects within a value of JSON; vocabularies and merges, which hold none, are not walked."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += [each for name, each in value.items() if name not in ("vocab", "merges")]
        elif isinstance(value, list):
            waiting += value
