"""Text for a terminal."""


def printable(text: str) -> str:
    r"""A text for a terminal: control characters but the line feed are written as in Python, so that none acts.

    Example:
        >>> printable("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)
