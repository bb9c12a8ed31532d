"""Text for a terminal and for messages."""

import difflib
from collections.abc import Iterable, Sequence


def printable(text: str) -> str:
    r"""A text for a terminal: control characters but the line feed are written as in Python, so that none acts.

    Example:
        >>> printable("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def perhaps(name: object, known: Iterable[object]) -> str:
    """The end of a message on a name that is not known: the known one that is spelt most alike, if one is.

    Example:
        >>> perhaps("sofmax", ["softmax", "sigmoid"]), perhaps("relu", ["softmax", "sigmoid"])
        ("; did you mean 'softmax'?", '')
    """
    names = {each.lower(): each for each in known if isinstance(each, str)}
    near = difflib.get_close_matches(name.lower(), names, n=1) if isinstance(name, str) else []
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def counted(number: int, noun: str) -> str:
    """A number of things, of which one is singular.

    Example:
        >>> counted(1, "layer"), counted(0, "layer"), counted(12, "head")
        ('1 layer', '0 layers', '12 heads')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def in_columns(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns set flush right, two blanks apart."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
