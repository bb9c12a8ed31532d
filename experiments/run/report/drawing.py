"""The pictures of one figure: drawn from stored numbers, and not drawn again while numbers and code are the same."""

import importlib.metadata
from pathlib import Path

from experiments.lib import style
from experiments.lib.figure import Figure
from experiments.run import identity, store
from experiments.run.choices import Run
from experiments.run.report import pictures

THEMES = {"light": "", "dark": ".dark"}
STILL = (".png", ".dark.png", ".pdf", f"{pictures.FOLDER}/.webp", f"{pictures.FOLDER}/.dark.webp")
STATE = f"{pictures.FOLDER}/.drawn"  # the hash of the numbers and the code that the pictures were drawn of
CODE = (Path(__file__), Path(pictures.__file__))


def draw(run: Run, name: str, figure: Figure, stored: store.Stored) -> None:
    """Draw a figure, PNG in light and dark and a PDF in light. A draft is light only."""
    # Nothing is drawn while every picture is there and was drawn of the same state.
    state = drawing_state(run, figure, stored).encode()
    needed = [ending for ending in STILL if not run.drafts or not (".dark" in ending or ending == ".pdf")]
    complete = all(_path(run, name, ending).is_file() for ending in (*needed, STATE))
    if complete and _path(run, name, STATE).read_bytes() == state:
        return

    _remove(run, name, (STATE,))
    themes = {theme: suffix for theme, suffix in THEMES.items() if theme == "light" or not run.drafts}
    for theme, suffix in themes.items():
        with style.theme(theme):
            drawing = figure.plot(stored.data)
            still = pictures.png(drawing, pictures.DRAFT if run.drafts else pictures.DPI)
            store.write(run.folder / f"{name}{suffix}.png", still)
            store.write(run.folder / pictures.FOLDER / f"{name}{suffix}.webp", pictures.for_report(still))
            if theme == "light" and not run.drafts:
                drawing.set_layout_engine("none")  # the first picture has laid everything out; the PDF is the same
                store.write(run.folder / f"{name}.pdf", pictures.pdf(drawing))
    store.write(_path(run, name, STATE), state)


def drawing_state(run: Run, figure: Figure, stored: store.Stored) -> str:
    """Hash of all that decides how a figure is drawn: its numbers and its code, and what draws."""
    code = [path.read_text(encoding="utf-8") for path in CODE]
    version = importlib.metadata.version("matplotlib")
    return identity.short([version, stored.provenance["sha256"], str(run.drafts), identity.code_state(figure), *code])


def forget(run: Run, name: str) -> None:
    """Remove pictures of a figure that an earlier run drew and this one could not."""
    _remove(run, name, (STATE, *STILL))


def _path(run: Run, name: str, ending: str) -> Path:
    folder, _, suffix = ending.rpartition("/")
    return run.folder / folder / f"{name}{suffix}"


def _remove(run: Run, name: str, endings: tuple[str, ...]) -> None:
    for ending in endings:
        _path(run, name, ending).unlink(missing_ok=True)
