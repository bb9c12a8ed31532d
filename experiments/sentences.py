"""Real sentences that every installation of Python carries: the docstrings of its standard library."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

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


def docstrings() -> Iterator[str]:
    """Docstrings of modules, classes and functions, in the order of `MODULES` and of their sources."""
    for name in MODULES:
        try:
            found = importlib.util.find_spec(name)
        except ImportError:
            continue
        if found is None or not found.origin or not found.origin.endswith(".py"):
            continue
        tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and text.strip():
                    yield text
