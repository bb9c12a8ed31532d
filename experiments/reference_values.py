"""Reference values for `rc_jax.diagnostics`: `python -m experiments.reference_values [MODEL …]` writes them.

They are diagnoses of the trained models that come as packages, on docstrings of Python's standard library, at several
numbers of tokens. A model that is not named, or whose package is not installed, keeps the values that the file has.
"""

import json
import math
import sys
from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from experiments.lib import sentences
from rc_jax import __version__, diagnostics, pretrained
from rc_jax.diagnostics import Diagnosis
from rc_jax.diagnostics.reference import FILE
from rc_jax.pretrained.tracing import layer

# Short names of the packaged models.
KINDS: dict[str, Literal["encoder", "decoder"]] = {"MiniLM-L6": "encoder", "SmolLM2-135M": "decoder"}
TOKENS = (32, 128, 512)
TEXTS = {32: 16, 128: 8, 512: 4}
DIGITS = 3


def main(names: Sequence[str]) -> None:
    """Write the file again, with these models, or with all, as far as they are installed."""
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"models": []}
    known = {model["name"]: model for model in stored["models"]}
    for name, kind in KINDS.items():
        folder = pretrained.packaged_checkpoint(kind)
        if folder is not None and name in (names or KINDS):
            checkpoint = pretrained.load(folder, dtype="float32")
            known[name] = {"name": name, "at": [_rounded(diagnosis(checkpoint, n).to_dict()) for n in TOKENS]}
    text = {"version": __version__, "texts": "docstrings of Python's standard library", "models": list(known.values())}
    FILE.write_text(json.dumps(text, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def diagnosis(checkpoint: pretrained.Checkpoint, tokens: int) -> Diagnosis:
    """Attention and hidden states of a checkpoint on texts of so many tokens."""
    texts = sentences.token_ids(checkpoint, TEXTS[tokens], tokens, spread=True)
    x = jnp.stack([checkpoint.embed(jnp.asarray(ids)) for ids in texts])
    weights, values, states = [], [], [np.asarray(x)]
    for index in range(checkpoint.spec.depth):
        x, p, v = layer(checkpoint.params, jnp.asarray(index), x, checkpoint.spec)
        for kept, new in ((weights, p), (values, v), (states, x)):
            kept.append(np.asarray(new))
    return diagnostics.attention(weights, values=values) | diagnostics.hidden_states(states)


def _rounded(value: Any) -> Any:
    """Numbers to three digits."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{DIGITS}g}")
    return value


if __name__ == "__main__":
    main(sys.argv[1:])
