"""A figure's picture on a page of the site gets its caption, its formula and its command.

Pages show pictures as Markdown does, `![title](pictures/NAME.webp)`, so that GitHub shows them too. On the site the
picture comes in light and in dark from a folder of results (`figures_results` in conf.py: $RC_JAX_RESULTS, else
results/quick). Where a run has not drawn it, the small picture of the repository stands there.
"""

import json
import os
import pathlib
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from experiments.lib import figure
from experiments.lib.figure import About, Broken
from experiments.run.choices import Run
from experiments.run.report import drawing

PICTURE = re.compile(r"(?:\.\./)*pictures/(?P<moving>moving/)?(?P<name>\w+)\.webp")
BARE = ("index", "gallery")  # pages whose pictures stay as they are


class NoPicture(Exception):
    """A figure that there is not; its message names those there are."""


class WithCaption(SphinxTransform):
    """Put a figure's block in place of each paragraph that is its picture."""

    default_priority = 200  # before Sphinx collects the images

    def apply(self, **_: Any) -> None:
        """Replace the pictures of one page."""
        results = pathlib.Path(self.config.figures_results)
        here = pathlib.Path(self.env.doc2path(self.env.docname)).parent
        for image in list(self.document.findall(nodes.image)):
            shown = PICTURE.fullmatch(image["uri"])
            paragraph = image.parent
            if shown is None or not isinstance(paragraph, nodes.paragraph) or len(paragraph) > 1:
                continue
            name = shown["name"]
            if self.env.docname in BARE or shown["moving"]:
                scroll = nodes.container(classes=["result-picture"])
                scroll += themed(small(image["uri"], here), image["alt"])
                paragraph.replace_self(scroll)
                continue
            files = pictures(name, results)
            addresses = {theme: os.path.relpath(path, here) for theme, path in files.items()}
            addresses = addresses or small(image["uri"], here)
            paragraph.replace_self(block(name, known(name).ABOUT, addresses, preset_of(results)))


def known(name: str) -> figure.Figure:
    """The module of a figure.

    Raises:
        NoPicture: there is none of that name, or it cannot be imported.
    """
    names = figure.names()
    if name not in names:
        raise NoPicture(f"no figure is called {name!r}; figures are {', '.join(names)}")
    module = figure.load(name)
    if isinstance(module, Broken):
        raise NoPicture(f"the figure {name} cannot be imported:\n{module.error}")
    return module


def pictures(name: str, results: pathlib.Path) -> dict[str, pathlib.Path]:
    """The drawings of a run by theme; nothing where one is missing."""
    files = {theme: results / f"{name}{suffix}.png" for theme, suffix in drawing.THEMES.items()}
    return files if all(path.is_file() for path in files.values()) else {}


def small(address: str, here: pathlib.Path) -> dict[str, str]:
    """A small picture of the repository by theme; one for both where no dark one was drawn."""
    dark = address.replace(".webp", ".dark.webp")
    return {"light": address, "dark": dark} if (here / dark).is_file() else {"": address}


def themed(addresses: dict[str, str], alt: str) -> list[nodes.Node]:
    """An image for each theme, of which the page shows one."""
    return [
        nodes.image(uri=address, alt=alt, classes=[f"only-{theme}"] if theme else [])
        for theme, address in addresses.items()
    ]


def preset_of(results: pathlib.Path) -> str:
    """The preset that a folder of results was made with: its `claims.json` knows; `quick` without one."""
    try:
        return str(json.loads((results / "claims.json").read_text(encoding="utf-8"))["preset"])
    except (OSError, ValueError, KeyError):
        return "quick"


def block(name: str, about: About, addresses: dict[str, str], preset: str) -> nodes.figure:
    """The pictures by theme, the caption, the formula and the command."""
    shown = nodes.figure(ids=[anchor(name)], names=[], classes=["result-figure"])
    scroll = nodes.container(classes=["result-picture"])
    scroll += themed(addresses, f"{about.title}. {about.caption}")
    shown += scroll
    end = " " if about.title[-1:] in ".?!" else ". "
    shown += nodes.caption("", "", nodes.strong("", about.title + end), *words(about.caption))
    legend = nodes.legend()
    legend += nodes.literal_block(about.formula, about.formula, language="none", classes=["formula"])
    command = Run(preset=preset).command(name)
    minutes = about.minutes.get(preset)
    remark = f" · about {minutes:g} min on two cores" if minutes is not None else ""
    legend += nodes.paragraph("", "", nodes.literal(command, command, classes=["command"]), nodes.Text(remark))
    shown += legend
    return shown


def words(text: str) -> list[nodes.Node]:
    """A text whose `code` is in single backquotes."""
    parts = text.split("`")
    return [nodes.literal(part, part) if at % 2 else nodes.Text(part) for at, part in enumerate(parts) if part]


def anchor(name: str) -> str:
    """The id of a figure on its page."""
    return f"figure-{name.replace('_', '-')}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform and the folder it looks into."""
    app.add_config_value("figures_results", "results/quick", "env", str)
    app.add_transform(WithCaption)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
