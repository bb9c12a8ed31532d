"""Write each notebook from its text form, stripped of outputs, with the repository's address in badge and first cell.

`python docs/notebooks/pair.py` after editing a text form; `python docs/notebooks/pair.py NAME/rc_jax` once the
repository has an address. Needs jupytext.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
NOWHERE = "OWNER/rc_jax"  # stands for an address while there is none; the first cell installs nothing from it
BADGE = re.compile(r"(https://colab\.research\.google\.com/github/)([\w.-]+/[\w.-]+)(/blob/main/)")
CONSTANT = re.compile(r'^(REPOSITORY, OLDEST_JAX = ")([\w.-]+/[\w.-]+)(")', re.MULTILINE)


def address(text: str) -> str:
    """The one address in a notebook's text form.

    Raises:
        ValueError: there is none, or badge and first cell differ.
    """
    found = {match[1] for pattern in (BADGE, CONSTANT) for match in pattern.findall(text)}
    if len(found) != 1:
        raise ValueError(f"badge and first cell must name one repository, got {sorted(found)}")
    return found.pop()


def addressed(text: str, repository: str) -> str:
    """The text form with another address."""
    for pattern in (BADGE, CONSTANT):
        text = pattern.sub(rf"\g<1>{repository}\g<3>", text)
    return text


def notebook(path: pathlib.Path) -> str:
    """The .ipynb of a text form: no outputs, and cells named by their place, so that nothing changes by itself."""
    import jupytext

    book = jupytext.read(path)
    for index, cell in enumerate(book.cells):
        cell["id"] = f"{path.stem}-{index}"
    book.update(nbformat=4, nbformat_minor=5)
    return jupytext.writes(book, fmt="ipynb").rstrip("\n") + "\n"


def main(repository: str | None = None) -> None:
    """Bring every pair into step."""
    for path in sorted(HERE.glob("*.md")):
        if repository:
            path.write_text(addressed(path.read_text(encoding="utf-8"), repository), encoding="utf-8")
        path.with_suffix(".ipynb").write_text(notebook(path), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 2 or (sys.argv[1:] and not re.fullmatch(r"[\w.-]+/[\w.-]+", sys.argv[1])):
        sys.exit(f"usage: python {sys.argv[0]} [OWNER/NAME]")
    main(*sys.argv[1:])
