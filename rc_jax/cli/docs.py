"""`rc-jax docs`: the how-to pages that the package brings, as text. Nothing here imports JAX."""

import re
from pathlib import Path
from typing import Any

from rc_jax.cli.arguments import Report, Usage, chosen

# In a wheel the pages lie beside this file (`force-include` of pyproject.toml), in a clone among the other docs.
PLACES = (Path(__file__).parent / "pages", Path(__file__).parents[2] / "docs" / "how-to")
LINK = re.compile(r"\[([^]]+)\]\((?!https?:|mailto:)([^)#\s]*)(?:#[^)\s]*)?\)")


def pages() -> dict[str, Path]:
    """Every page by its name."""
    folder = next((place for place in PLACES if place.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.md"))}


def run(arguments: Any) -> Report:
    """The page that is asked for, or the list of all."""
    if len(arguments.page) > 1:
        raise Usage(f"`PAGE` must be one name, got {' '.join(arguments.page)}")
    known = pages()
    if not arguments.page:
        titles = {name: path.read_text(encoding="utf-8").partition("\n")[0].strip("# ") for name, path in known.items()}
        width = max(map(len, titles), default=0)
        lines = [f"{name:{width}}  {title}" for name, title in titles.items()]
        return Report("\n".join([*lines, "", "rc-jax docs PAGE shows one."]), {"pages": titles})
    name = chosen("PAGE", arguments.page[0].removesuffix(".md"), known)
    text = known[name].read_text(encoding="utf-8").rstrip()
    return Report(LINK.sub(lambda link: _words(link, known), text), {"page": name, "text": text})


def _words(link: re.Match[str], known: dict[str, Path]) -> str:
    """A link to another page as words, with the command that shows it."""
    name = Path(link[2]).stem
    return f"{link[1]} (rc-jax docs {name})" if "/" not in link[2] and name in known else link[1]
