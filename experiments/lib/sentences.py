"""Real sentences that every installation of Python carries: the docstrings of its standard library."""

import ast
import functools
import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.lib.figure import Unavailable
from rc_jax.pretrained import Checkpoint

# Modules of plain Python that have long docstrings and have been there, little changed, since Python 3.4 or before.
MODULES = (
    "argparse", "ast", "base64", "bisect", "calendar", "cmd", "code", "codecs", "collections",
    "configparser", "contextlib", "copy", "csv", "datetime", "decimal", "difflib", "doctest", "email.message", "enum",
    "fileinput", "fractions", "functools", "getopt", "gettext", "heapq", "html.parser", "http.client", "inspect",
    "ipaddress", "json", "locale", "logging", "mailbox", "numbers", "optparse", "os", "pathlib", "pdb", "pickle",
    "pickletools", "pprint", "profile", "random", "sched", "shelve", "shlex", "shutil", "smtplib", "socket",
    "socketserver", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit",
    "traceback", "turtle", "typing", "unittest.case", "urllib.parse", "urllib.request", "uuid", "warnings", "weakref",
    "xmlrpc.client", "zipfile",
)  # fmt: skip


@functools.cache
def docstrings() -> tuple[str, ...]:
    """Docstrings of modules, classes and functions, in the order of `MODULES` and of their sources."""
    return tuple(text for name in MODULES for text in _docstrings(name))


def _docstrings(name: str) -> Iterator[str]:
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:
        return
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and text.strip():
                yield text


def check_length(model: str, most: int | None, tokens: int) -> None:
    """Check that a model takes texts of so many tokens.

    Raises:
        Unavailable: it does not.
    """
    if most is not None and tokens > most:
        raise Unavailable(f"{model} takes at most {most} tokens, {tokens} wanted")


def token_ids(checkpoint: Checkpoint, texts: int, tokens: int, *, spread: bool = False) -> np.ndarray:
    """The first tokens of long docstrings inside the special tokens the model was trained with: (text, token).

    The first docstrings that are long enough or, if `spread`, as many evenly chosen from all of them.

    Raises:
        Unavailable: no tokenizer that can be used, a model for shorter sequences, or too few docstrings of that length.
    """
    model = checkpoint.folder.name
    check_length(model, checkpoint.most_tokens, tokens)
    try:
        (before, after), tokenizer = checkpoint.frame, checkpoint.tokenizer
    except (FileNotFoundError, ImportError, ValueError) as error:
        raise Unavailable(f"no text for {model}: {error}") from error
    # Docstrings that fill the space between the special tokens.
    inside = tokens - len(before) - len(after)
    if inside < 1:
        raise Unavailable(f"{tokens} tokens leave no space between the special tokens of {model}")
    every = (tokenizer.encode(text, add_special_tokens=False).ids for text in docstrings())
    long = ([*before, *ids[:inside], *after] for ids in every if len(ids) >= inside)
    chosen = list(long if spread else itertools.islice(long, texts))
    if len(chosen) < texts:
        raise Unavailable(
            f"only {len(chosen)} docstrings of {inside} tokens in this Python's standard library, {texts} wanted; "
            "are the sources installed?"
        )
    return np.array([chosen[index * len(chosen) // texts] for index in range(texts)], np.int32)
