"""Reference values for `rc_jax.diagnostics`: `python -m experiments.reference_values [MODEL …]` writes them.

They are diagnoses of the trained models that come as packages, on docstrings of Python's standard library, at several
numbers of tokens. A model that is not named, or whose package is not installed, keeps the values that the file has.
"""

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lib import sentences
from rc_jax import __version__, attention, diagnostics, pretrained
from rc_jax.diagnostics import Diagnosis
from rc_jax.diagnostics.reference import FILE
from rc_jax.network import LayerParams, StackSpec, block, plain_arithmetic

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
    texts = [jnp.asarray(ids) for ids in sentences.token_ids(checkpoint, TEXTS[tokens], tokens, spread=True)]
    runs = [_run(checkpoint, ids) for ids in texts]
    weights, values, states = (
        [np.stack(parts) for parts in zip(*(run[kind] for run in runs), strict=True)] for kind in range(3)
    )
    return diagnostics.attention(weights, values=values) | diagnostics.hidden_states(states)


def _run(checkpoint: pretrained.Checkpoint, ids: jax.Array) -> tuple[list[np.ndarray], ...]:
    """Weights and values of each layer, and the states before and after each."""
    x = checkpoint.embed(ids)
    weights, values, states = [], [], [np.asarray(x)]
    for index in range(checkpoint.spec.depth):
        x, p, v = _layer(checkpoint.params, jnp.asarray(index), x, checkpoint.spec)
        for kept, new in ((weights, p), (values, v), (states, x)):
            kept.append(np.asarray(new))
    return weights, values, states


@functools.partial(jax.jit, static_argnames="spec")
def _layer(params: LayerParams, index: jax.Array, x: jax.Array, spec: StackSpec) -> tuple[jax.Array, ...]:
    """The tokens after one layer, and the weights and values of its attention."""
    own = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), params)
    arithmetic, observed = plain_arithmetic(spec, None, None), []

    def attend(part: attention.AttentionParams, read: jax.Array) -> jax.Array:
        # What the attention reads is the layer's input, or its norm.
        v = jnp.einsum("nd,hde->hne", read, part.value, precision="highest")
        v = v if part.value_bias is None else v + part.value_bias[:, None]
        observed.append((attention.attention_weights(part, read, spec.attention), v))
        return arithmetic.attend(part, read)

    out = block(own, x, spec, dataclasses.replace(arithmetic, attend=attend))
    return out, *observed[0]


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
