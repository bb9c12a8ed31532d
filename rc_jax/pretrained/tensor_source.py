"""The tensors of a checkpoint, read one by one; the files of a folder with safetensors, in one piece or in shards."""

import contextlib
import fnmatch
import functools
import importlib
import os
import re
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rc_jax._numerics import arguments
from rc_jax._numerics.text import printable
from rc_jax.pretrained.config import CONFIG, read_object

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
GGUF = ".gguf"
FLOATS = ("BF16", "F16", "F32", "F64")  # as the format names them, in the order of their digits
Stored = Any  # a numpy array on its way to a place where a JAX array belongs


def check_names(file: Path, names: Iterable[str]) -> None:
    """Refuse names with characters that act on a terminal, wherever an error would show them."""
    for name in names:
        if not name.isprintable():
            raise ValueError(f"names must be printable in '{file}', got {name!r:.200}")


check_path = arguments.must(
    f"a path to a folder with {CONFIG} and {WEIGHTS}", right=lambda value: isinstance(value, str | os.PathLike)
)


def checkpoint_path(folder: str | os.PathLike[str]) -> Path:
    """The folder or, where it has no config.json or is itself a file, the GGUF file, once it is known to be there."""
    path = Path(folder)
    if path.is_file() and path.suffix == GGUF:
        return path
    if path.is_dir() and not (path / CONFIG).is_file() and (files := sorted(path.glob(f"*{GGUF}"))):
        if len(files) > 1:
            raise ValueError(f"`folder` must be one of the {len(files)} {GGUF} files in '{path}', got their folder")
        return files[0]
    if not path.is_dir():
        # A name such as google-bert/bert-base-uncased is a repository of the hub, which must be fetched first.
        name = os.fspath(folder)
        fetch = f"; for a repository of the Hugging Face hub: hf download {name} --local-dir {path.name}"
        hint = fetch if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not name.startswith(".") else ""
        raise FileNotFoundError(
            f"`folder` must be an existing folder with {CONFIG} and {WEIGHTS}, or a {GGUF} file, got '{path}'{hint}"
        )
    return path


class Location(NamedTuple):
    """A tensor of an open file.

    Attributes:
        name: what the file calls it.
        file: the file's path.
        shape: by the file's header.
        kind: the format of the numbers, by the header.
        read: gives the numbers; a file without them is a ValueError.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    kind: str
    read: Callable[[], Stored]


class Tensors:
    """The tensors of a checkpoint, taken one by one; a tensor that is left at the end is an error.

    Attributes:
        file: the file or the index that names them.
        left: the location of each tensor that was not taken yet.
        kind: the dtype of the parameters, which every number must fit.
        ignored: the names of the tensors put aside.
        called: what the file calls a tensor that is looked for.
    """

    def __init__(self, file: Path, left: dict[str, Location], called: Callable[[str], str] = str):
        self.file, self.left, self.called = file, left, called
        self.kind: np.dtype[Any] = np.dtype(np.float32)
        self.ignored: tuple[str, ...] = ()

    def rename(self, old: str, new: str) -> None:
        """Write `new` where a name ends in `old`."""
        for name in [name for name in self.left if name.endswith(old)]:
            other = name.removesuffix(old) + new
            if other in self.left:
                raise ValueError(f"tensor {name!r} must not stand beside {other!r} in '{self.file}': they are one")
            self.left[other] = self.left.pop(name)

    def ignore(self, patterns: Iterable[str]) -> None:
        """Put aside the tensors that the hidden states do not depend on; `*` in a pattern stands for anything."""
        aside = {name for pattern in patterns for name in fnmatch.filter(self.left, pattern)}
        self.ignored = (*self.ignored, *sorted(map(self.called, aside)))
        self.left = {name: location for name, location in self.left.items() if name not in aside}

    def take(self, name: str, *shape: int) -> Stored:
        """Read the tensor of that name, once its shape, dtype and finiteness are checked."""
        if name not in self.left:
            # The whole name may stand there behind that of a module which wraps the model.
            wrapped = next((other for other in self.left if other.endswith(f".{name}")), None)
            hint = (
                f", which has {wrapped!r}: save the model inside alone, such as `model._orig_mod` after torch.compile, "
                "or `language_model` of a model of images and text"
            )
            hint = "" if wrapped is None else hint
            raise ValueError(f"tensor '{self.called(name)}' is missing in '{self.file}'{hint}")
        name, file, stored_shape, kind, read = self.left.pop(name)
        # The header is checked before any number is read.
        if stored_shape != shape:
            raise ValueError(f"tensor '{name}' must have shape {shape} in '{file}', got {stored_shape}")
        if kind not in FLOATS:
            raise ValueError(f"tensor '{name}' must hold floating-point numbers in '{file}', got {kind}")
        value = read()
        if not np.isfinite(value).all():
            raise ValueError(f"tensor '{name}' must be finite in '{file}', got NaN or infinity")
        most = float(jnp.finfo(self.kind).max)
        if value.size and float(jnp.finfo(value.dtype).max) > most and (largest := float(abs(value).max())) > most:
            raise ValueError(
                f"tensor '{name}' must be finite in {self.kind}, at most {most:.3g}, in '{file}': {largest:g}"
            )
        return value

    def widest(self) -> str:
        """The widest floating-point format among the tensors left; of two of one size, the one of more digits."""
        stored = {location.kind for location in self.left.values()}
        return max(stored & set(FLOATS), key=FLOATS.index, default="F32")

    def finish(self) -> None:
        """Refuse tensors that are left."""
        if self.left:
            names = sorted(self.called(name) for name in self.left)
            shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if names[3:] else "")
            file = self.left[min(self.left, key=self.called)].file
            raise ValueError(f"unexpected tensor {shown} in '{file}': the layout has no place for it")


@contextlib.contextmanager
def open_tensors(folder: Path) -> Generator[Tensors, None, None]:
    """The tensors of a folder, whose files are open inside; one file `model.safetensors` goes before an index."""
    try:
        importlib.import_module("safetensors")
    except ImportError as error:
        raise ImportError("reading a checkpoint needs safetensors: pip install 'rc_jax[pretrained]'") from error
    with contextlib.ExitStack() as files:
        if (file := folder / WEIGHTS).is_file():
            yield Tensors(file, _open(file, files, tied=True))
        elif (file := folder / INDEX).is_file():
            yield Tensors(file, _open_shards(file, files))
        else:
            raise FileNotFoundError(_no_weights(folder))


def _open(file: Path, files: contextlib.ExitStack, *, tied: bool = False) -> dict[str, Location]:
    """The location of each tensor of one file; only the file's header is read.

    Args:
        file: the file.
        files: keeps it open.
        tied: whether tensors count too that the file does not hold because they are one with another, as its metadata
            says: `safetensors.torch.save_model` writes `{"model.embed_tokens.weight": "lm_head.weight"}`.
    """
    from safetensors import SafetensorError, safe_open

    try:
        opened = files.enter_context(safe_open(str(file), framework="np"))
        headers = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
        check_names(file, headers)
        also = (opened.metadata() or {}) if tied else {}
    except SafetensorError as error:
        raise _corrupted(file, error) from error

    def read(name: str) -> Stored:
        try:
            return opened.get_tensor(name)
        except SafetensorError as error:
            raise _corrupted(file, error) from error

    located = {
        name: Location(name, file, tuple(header.get_shape()), header.get_dtype(), functools.partial(read, name))
        for name, header in headers.items()
    }
    one_with = {name: other for name, other in also.items() if other in located and name not in located}
    check_names(file, one_with)
    return located | {name: located[other] for name, other in one_with.items()}


def _open_shards(index: Path, files: contextlib.ExitStack) -> dict[str, Location]:
    """The location of each tensor that an index names; the index and its shards must agree."""
    shard_of = read_object(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise ValueError(f"'{index}' must hold an object `weight_map` from tensors to shards, got {shard_of!r:.80}")
    # The index may name only files of the folder itself.
    check_names(index, (name for item in shard_of.items() for name in map(str, item)))
    for tensor, shard in shard_of.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ValueError(
                f"tensor {tensor!r} must lie in a .safetensors file of the folder itself, got {shard!r} in '{index}'"
            )
        if not (file := index.parent / shard).is_file():
            raise FileNotFoundError(f"tensor {tensor!r} lies in '{file}' by '{index}', but no such file exists")
    # A shard must hold the tensors that the index says, and no other.
    tensors: dict[str, Location] = {}
    for shard in sorted(set(shard_of.values())):
        file = index.parent / shard
        stored = _open(file, files)
        for tensor in sorted({tensor for tensor in shard_of if shard_of[tensor] == shard} ^ set(stored)):
            if tensor not in stored:
                raise ValueError(f"tensor {tensor!r} is missing in '{file}', where '{index}' says it is")
            raise ValueError(f"unexpected tensor {tensor!r} in '{file}': '{index}' does not say it is there")
        tensors |= stored
    return tensors


def _corrupted(file: Path, error: Exception) -> ValueError:
    return ValueError(f"'{file}' is truncated, corrupted or not a safetensors file: {printable(f'{error}'.strip())}")


def _no_weights(folder: Path) -> str:
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern))
    if pickles:
        return (
            f"`folder` must hold a file {WEIGHTS}, got '{folder}' with {pickles[0]}: that is a pickle, and unpickling "
            "runs whatever code its author put in, so it is refused; convert it to safetensors"
        )
    return f"`folder` must hold a file {WEIGHTS}, or {INDEX} and its shards, got '{folder}' without one"
