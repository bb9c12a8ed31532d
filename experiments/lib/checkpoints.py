"""The checkpoints that a run is given: looked at before anything is computed, named, and known by their content.

A result belongs to what the files say, not to where they lie: its identity holds a hash of their bytes, so that other
weights under an old path are computed, and the same ones under a new path are loaded.
"""

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# As `rc_jax.pretrained` has them, which imports JAX; these checks do not.
CONFIG, WEIGHTS, TOKENIZER, GGUF = "config.json", "model.safetensors", "tokenizer.json", ".gguf"
_LONGEST = 80  # characters of the names in a folder's name


class Unusable(Exception):
    """A folder that holds no checkpoint, in one line for the user."""


def read_by(figure: Any) -> bool:
    """True where a figure's Spec has a field for checkpoints; one that cannot be imported has none."""
    spec = getattr(figure, "Spec", None)
    return spec is not None and any(field.name == "checkpoints" for field in dataclasses.fields(spec))


def check(folders: Sequence[str]) -> None:
    """Look at every folder, without reading the weights.

    Raises:
        Unusable: no folder or GGUF file, a folder that lacks config.json, safetensors or tokenizer.json, or one twice.
    """
    for folder in folders:
        path = Path(folder)
        if _packed(path):
            continue
        if not path.is_dir():
            raise Unusable(f"`--checkpoint` must be an existing folder or a {GGUF} file, got {folder!r}")
        for names in ((CONFIG,), (WEIGHTS, f"{WEIGHTS}.index.json"), (TOKENIZER,)):
            if not any((path / name).is_file() for name in names):
                needed = " or ".join(names)
                raise Unusable(f"`--checkpoint` must be a folder with {needed}, got {folder!r} without one")
    places = [os.path.realpath(folder) for folder in folders]
    for index, (folder, place) in enumerate(zip(folders, places, strict=True)):
        if place in places[:index]:
            raise Unusable(f"`--checkpoint` must name different folders, got {folder!r} twice")


def _packed(path: Path) -> list[Path]:
    """The GGUF file that is meant, in a list; none where a folder has other files, or several."""
    if path.is_file() and path.suffix == GGUF:
        return [path]
    gguf_files = [] if (path / CONFIG).is_file() else sorted(path.glob(f"*{GGUF}"))
    return gguf_files if len(gguf_files) == 1 else []


def labels(folders: Sequence[str]) -> list[str]:
    """A name for each: the last part of its path, and where two end alike, the parts before it too.

    A snapshot in the cache of the Hugging Face hub is named by model and revision; where seven digits of it and the
    model's own name do not tell two apart, by the whole revision and the owner too.
    """
    short, names = [_parts(folder) for folder in folders], []
    paths = [
        _parts(folder, whole=True) if short.count(parts) > 1 else parts
        for folder, parts in zip(folders, short, strict=True)
    ]
    for own in paths:
        others, count = [path for path in paths if path != own], 1
        while any(other[-count:] == own[-count:] for other in others):
            count += 1
        names.append("/".join(own[-count:]))
    return names


def _parts(folder: str, *, whole: bool = False) -> tuple[str, ...]:
    parts = Path(os.path.abspath(folder)).parts
    if len(parts) > 3 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        owner, dashes, model = parts[-3].removeprefix("models--").rpartition("--")
        name = f"{owner}{dashes}{model}@{parts[-1]}" if whole else f"{model}@{parts[-1][:7]}"
        return (*parts[:-3], name)
    return parts


def identity(folders: Sequence[str]) -> list[dict[str, str]]:
    """The identity of a result: the names, which it shows, and the content of the files."""
    return [{"name": name, "sha256": content(folder)} for name, folder in zip(labels(folders), folders, strict=True)]


def tag(folders: Sequence[str]) -> str:
    """A name for the folder of a run's results: the names of its checkpoints and eight digits of their contents."""
    digest = hashlib.sha256("".join(map(content, folders)).encode()).hexdigest()[:8]
    names = re.sub(r"[^\w.+@-]", "_", "+".join(labels(folders)))
    return f"{names[:_LONGEST]}-{digest}"


def content(folder: str) -> str:
    """Hash of a checkpoint's settings, tokenizer and weights, all their bytes; other files do not count."""
    path = Path(folder)
    files = _packed(path) or [path / CONFIG, path / TOKENIZER, *sorted(path.glob("*.safetensors*"))]
    whole = hashlib.sha256()
    for file in files:
        if file.is_file():
            state = file.stat()
            whole.update(f"{file.name} {_digest(file, state.st_size, state.st_mtime_ns)}\n".encode())
    return whole.hexdigest()


@functools.lru_cache(maxsize=1024)
def _digest(file: Path, size: int, changed: int) -> str:
    """Hash of one file; a process that asks again reads it again only when its size or time has changed."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
