"""Write each notebook from its text form, without outputs: `python docs/notebooks/pair.py` after editing a text form.

The text form installs rc_jax from a wheel beside it or from the clone that it lies in, and says how to bring a wheel.
Where `[project.urls]` of pyproject.toml names a repository on GitHub, under `Repository`, the notebooks install from
there and carry a Colab badge. Needs jupytext.
"""

import pathlib
import re
import tomllib

HERE = pathlib.Path(__file__).parent
PROJECT = HERE.parent.parent / "pyproject.toml"
PLACE = re.compile(r"place = max\(.*")  # the wheel or the clone, in the first cell
WITHOUT = re.compile(r"\nThe package is taken from a wheel.*?pane \*Files\*\.", re.DOTALL)
COLAB = "https://colab.research.google.com"


def repository(project: pathlib.Path = PROJECT) -> str | None:
    """OWNER/NAME of the repository that pyproject.toml names, None where it names none.

    Raises:
        ValueError: the address is not one on GitHub, from which alone Colab opens a notebook.
    """
    address = tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("urls", {}).get("Repository")
    if address is None:
        return None
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", address)
    if match is None:
        raise ValueError(f"`Repository` must be https://github.com/OWNER/NAME, got {address}")
    return match[1]


def notebook(path: pathlib.Path, repository: str | None) -> str:
    """The .ipynb of a text form: no outputs, and cells named by their place, so that nothing changes by itself."""
    import jupytext

    book = jupytext.read(path)
    for index, cell in enumerate(book.cells):
        cell["id"] = f"{path.stem}-{index}"
    if repository:
        # The first cell of text gets the badge and loses the way to a wheel; the first of code gets the address.
        text, code = (next(cell for cell in book.cells if cell.cell_type == kind) for kind in ("markdown", "code"))
        title, _, rest = WITHOUT.sub("", text.source).partition("\n\n")
        place = f"github/{repository}/blob/main/docs/notebooks/{path.stem}.ipynb"
        text.source = f"{title}\n\n[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({COLAB}/{place})\n\n{rest}"
        code.source = PLACE.sub(f'place = "git+https://github.com/{repository}"', code.source)
    book.update(nbformat=4, nbformat_minor=5)
    return jupytext.writes(book, fmt="ipynb").rstrip("\n") + "\n"


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.md")):
        path.with_suffix(".ipynb").write_text(notebook(path, repository()), encoding="utf-8")
