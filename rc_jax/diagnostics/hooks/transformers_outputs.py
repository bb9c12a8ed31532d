"""Diagnosis of what a model of the transformers library returns, in one call; the library itself is not imported."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rc_jax._numerics import arguments
from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.seen import PADDING, Texts, farthest, segments
from rc_jax.diagnostics.states import hidden_states
from rc_jax.diagnostics.weights import diagnose

PARTS = (None, "encoder", "decoder", "cross")
FIELDS = ("attentions", "hidden_states")
STEPS = (
    "`outputs` must be those of one forward pass, got those of several steps, as `generate` returns them, each with "
    "its own layers, and with rows of one query after the first: call the model once on the whole text, or give one "
    "step, as {'attentions': outputs.attentions[3]}"
)


@arguments.guard(part=arguments.one_of(PARTS))
def from_transformers(
    outputs: Any, *, attention_mask: Any = None, config: Any = None, part: str | None = None, **options: Any
) -> Diagnosis:
    """Diagnose attention and hidden states of a model of the transformers library, from its output.

    The model returns them if it is called with `output_attentions=True` and `output_hidden_states=True`. Weights exist
    only under `attn_implementation="eager"`; other implementations never form them. One of the two is enough.

    The last hidden state is the one after the final norm, in families that have one: its residual is that of what the
    readout sees.

    Args:
        outputs: what the model returned: an object or a mapping with `attentions` and `hidden_states`.
        attention_mask: the one that the tokenizer gave, (batch, tokens): 0 where a token is padding, on either side.
            Padding is left out: neither its rows nor its columns count, and the first token is the first real one.
            Without it, padding is found where no query has weight on it, and a note says so.
        config: `model.config`. It tells which layers have attention, in hybrid models, and which have a window. Without
            it windows are found from zeros, and a note says so.
        part: "encoder" or "decoder" of a model that has both, or "cross", the attention of the decoder on the encoder,
            whose `attention_mask` is that of the encoder.
        options: passed on to `attention`, such as `threshold`, or `mask`, which is joined with `attention_mask`.

    Returns:
        A `Diagnosis`; the batch makes its samples.

    Raises:
        ValueError: the attentions are empty or those of several steps; and whatever `attention` and `hidden_states`
            raise.

    Source: as `attention` and `hidden_states`.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> even = np.full((2, 3, 4, 4), 0.25, np.float32)  # two texts, three heads, four tokens
        >>> diagnosis = diagnostics.from_transformers({"attentions": (even, even)})
        >>> diagnosis["participation"].tolist()
        [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
    """
    # What the output holds, and why something that should be there is not.
    if part is None and any(_field(outputs, f"encoder_{name}") is not None for name in FIELDS):
        raise ValueError("`part` must be 'encoder', 'decoder' or 'cross' for a model that has both, got None")
    names = [name if part is None else f"{part}_{name}" for name in FIELDS[: 1 if part == "cross" else 2]]
    weights, states = [*(_field(outputs, name) for name in names), None][:2]
    if weights is None and states is None and part is not None:
        raise ValueError(f"`part` must be None for outputs without {' and '.join(names)}, got {part!r}")
    if weights is None and states is None:
        raise TypeError(
            "`outputs` must have attentions or hidden states: call the model with output_attentions=True and "
            f"output_hidden_states=True, got {_described(outputs)}"
        )
    if any(isinstance(each[0], list | tuple) for each in (weights, states) if each is not None and len(each)):
        raise ValueError(STEPS)
    weights = None if weights is None else list(weights)
    if weights is not None and all(layer is None for layer in weights):
        raise ValueError(
            "`outputs` must hold the attention weights of every layer, got none: load the model with "
            'attn_implementation="eager", because other implementations do not form them'
        )
    if weights is not None and (part == "cross" or _rectangular(weights)):
        known = {"causal": False} if part == "cross" else {}
        return _of_rectangles(weights, attention_mask, states, known | options)
    texts, cut = None, False
    if attention_mask is not None:
        kept: Any = states if weights is None else [layer for layer in weights if layer is not None]
        shape = inputs.layers_of("outputs", list(kept), ("tokens", "features"), stacked=4).shape
        texts, cut = _texts(attention_mask, shape[0], shape[-2])
    parts: list[Diagnosis] = []
    if weights is not None:
        depth = None if states is None else len(states) - 1
        known = {"segment_ids": np.where(texts < 0, PADDING, texts + 1)} if cut and texts is not None else {}
        diagnosis, found = _of_weights(weights, depth, texts, None if part else config, known | options)
        texts = found.keys
        parts.append(diagnosis)
    if states is not None:
        ids = None if texts is None else np.where(texts < 0, PADDING, texts + 1)
        parts.append(hidden_states(list(states), segment_ids=ids))
    return parts[0] | parts[1] if len(parts) == 2 else parts[0]


def _rectangular(weights: list[Any]) -> bool:
    """Whether queries are not the tokens that they look at."""
    return any(layer is not None and layer.ndim > 1 and layer.shape[-1] != layer.shape[-2] for layer in weights)


def _of_rectangles(weights: list[Any], attention_mask: Any, states: Any, options: dict[str, Any]) -> Diagnosis:
    """Attention of the decoder on the encoder, or of the last tokens on all."""
    given = [index for index, layer in enumerate(weights) if layer is not None]
    layers = [weights[index] for index in given]
    if attention_mask is not None:
        shape = inputs.layers_of("outputs", layers, ("heads", "queries", "keys"), stacked=5).shape
        real = (_texts(attention_mask, shape[0], shape[-1])[0] >= 0)[:, None, None]
        mask = options.pop("mask", None)
        options |= {"mask": real if mask is None else real & inputs.mask_of("mask", mask, shape)}
    notes = () if states is None else ("Hidden states are left out: they are those of the queries alone.",)
    return diagnose(layers, numbers=given, notes=notes, own=False, **options)[0]


def _field(outputs: Any, name: str) -> Any:
    """A field of an object or a mapping; `None` where there is none."""
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _described(outputs: Any) -> str:
    names = ", ".join(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
    return names or "nothing"


def _texts(attention_mask: Any, batch: int, tokens: int) -> tuple[np.ndarray, bool]:
    """Numbers of texts (text, token), −1 for padding; and whether the mask numbers them, 1, 2, …, in a row."""
    mask = inputs.on_host(attention_mask)
    if mask.dtype.kind not in "bui":
        raise TypeError(
            f"`attention_mask` must hold 0 and 1 as whole numbers or booleans, got {inputs.described(attention_mask)}"
        )
    if mask.shape != (batch, tokens):
        raise ValueError(
            f"`attention_mask` must have the shape {(batch, tokens)}, got {inputs.described(attention_mask)}"
        )
    mask = mask.astype(int)
    if not (mask != 0).sum(1).max() >= 2:
        raise ValueError("`attention_mask` must leave at least two tokens in some text")
    return segments("attention_mask", np.where(mask == 0, PADDING, mask), batch, tokens), bool((mask > 1).any())


def _of_weights(
    weights: list[Any], depth: int | None, texts: np.ndarray | None, config: Any, options: dict[str, Any]
) -> tuple[Diagnosis, Texts]:
    """Attention of the layers that have some, among the tokens that are real, and which texts they belong to.

    Args:
        weights: of each layer of attention, or of each layer of the model with `None` for others.
        depth: how many layers the model has, where hidden states tell.
        texts: −1 where a token is padding; `None` where nobody has said.
        config: of the model, or `None`.
        options: of `attention`.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = getattr(text, "layer_types", None)
    given = [index for index, layer in enumerate(weights) if layer is not None]
    layers, notes = [weights[index] for index in given], []
    # Which layers of the model these are.
    own = given if kinds is None else [index for index, kind in enumerate(kinds) if _attends(kind)]
    if len(given) == len(weights) == len(own):
        numbers = own
    elif kinds is not None and len(weights) not in (len(own), len(kinds)):
        raise ValueError(
            f"`config` must be that of the model, whose layer_types name {len(own)} layers of attention among "
            f"{len(kinds)}, got weights of {len(weights)}"
        )
    else:
        numbers = given
    if depth is not None and kinds is None and len(weights) != depth:
        notes.append(
            f"The model has {depth} layers, and {len(weights)} of them gave weights. These are counted from 0 in their "
            "own order, which is not that of the hidden states: pass config=model.config for their numbers."
        )
    windows = None if config is None else _windows(text, numbers, layers)
    return diagnose(layers, texts=texts, windows=windows, numbers=numbers, notes=notes, **options)


def _attends(kind: str) -> bool:
    """Whether a kind of `config.layer_types` has attention weights: "full_attention" and "hybrid", not "mamba"."""
    return ("attention" in kind and "linear" not in kind) or kind == "hybrid"


def _windows(config: Any, numbers: list[int], layers: list[Any]) -> list[np.ndarray | None]:
    """What queries may see beside causality, where `layer_types` and `sliding_window` say it; `None` where they do not.

    A config that names neither states nothing: its layers may have windows under other names, or packed texts.
    """
    kinds, n = getattr(config, "layer_types", None), layers[0].shape[-1]
    size = getattr(config, "sliding_window", None)
    used = isinstance(size, int) and getattr(config, "use_sliding_window", True)
    distance = np.abs(np.arange(n)[:, None] - np.arange(n)[None])
    made: dict[Any, np.ndarray] = {"full_attention": np.ones((n, n), bool)}
    windows: list[np.ndarray | None] = []
    for number, weights in zip(numbers, layers, strict=True):
        kind = ("sliding_attention" if used else None) if kinds is None else kinds[number]
        if kind == "sliding_attention" and kind not in made and isinstance(size, int):
            # Causal layers see `size` keys, their own among them; others so many to each side.
            one = inputs.layers_of("outputs", [weights], ("tokens", "tokens"), stacked=4)
            made[kind] = distance <= size if farthest(one, distance == size) else distance < size
        windows.append(made.get(kind))
    return windows
