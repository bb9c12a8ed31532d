"""Diagnosis of what a model of the transformers library returns, in one call; the library itself is not imported."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rc_jax._numerics import arguments
from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.seen import PADDING, Place, Texts, empty_places, farthest, keys_used, place, segments
from rc_jax.diagnostics.states import hidden_states
from rc_jax.diagnostics.weights import attention, diagnose

PARTS = (None, "encoder", "decoder", "cross")
FIELDS = ("attentions", "hidden_states")
STEPS = (
    "`outputs` must be those of one forward pass, got those of several steps, as `generate` returns them, each with "
    "its own layers, and with rows of one query after the first: call the model once on the whole text, or give one "
    "step, as {'attentions': outputs.attentions[3]}"
)


STREAMS = (
    "`outputs` must have one array of weights in each layer, got those of two streams, as XLNet gives with "
    "`target_mapping`: pass one, {'attentions': [each[0] for each in outputs.attentions]}"
)


@arguments.guard(part=arguments.one_of(PARTS))
def from_transformers(
    outputs: Any,
    *,
    attention_mask: Any = None,
    decoder_attention_mask: Any = None,
    config: Any = None,
    part: str | None = None,
    **options: Any,
) -> Diagnosis:
    """Diagnose attention and hidden states of a model of the transformers library, from its output.

    The model returns them if it is called with `output_attentions=True` and `output_hidden_states=True`. Weights exist
    only under `attn_implementation="eager"`; other implementations never form them. One of the two is enough.

    The last hidden state has passed the final norm in GPT-2, Llama and most decoders: its residual is that of what the
    readout sees. In ViT, DINOv2, SigLIP and the text part of CLIP it has not. A note says so where the model returns a
    `last_hidden_state` that differs from it.

    Args:
        outputs: what the model returned: an object or a mapping with `attentions` and `hidden_states`, or the tuple of
            `return_dict=False`.
        attention_mask: the one that the tokenizer gave, (batch, tokens): 0 where a token is padding, on either side.
            Padding is left out: neither its rows nor its columns count, and the first token is the first real one.
            Without it, padding is found where no query has weight on it, and a note says so. With 1, 2, 3, … it numbers
            the texts of a row, of which each is measured by itself. Where queries look at the keys of a cache it has a
            number for each key that is filled; zeros or ones may follow for the empty places of a static cache. Beside
            a `config` with a window it may have one for each token, of which the cache keeps the last.
        decoder_attention_mask: with `part="cross"`, 0 where a token of the decoder, whose queries these are, is
            padding, (batch, queries): these queries are left out. Without it all queries count.
        config: `model.config`. It tells which layers have attention, in hybrid models, and which have a window or
            chunks, where it has `layer_types`, `sliding_window` or `attention_chunk_size`, with a `part` where that has
            a configuration of its own. Other windows, and those without it, are found from zeros, and a note says so.
        part: "encoder" or "decoder" of a model that has both, or "cross", the attention of the decoder on the encoder,
            whose `attention_mask` is that of the encoder.
        options: passed on to `attention`, such as `threshold`, or `mask` and `segment_ids`, which are joined with
            `attention_mask`: a token counts where all say so.

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
    known = [name for name in inspect.signature(attention).parameters if name not in ("weights", "axes")]
    for name in options:
        arguments.one_of(known)("options", name)
    config = _of_part(config, part)
    # What the output holds, and why something that should be there is not.
    outputs = _named(outputs)
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
        raise ValueError(STREAMS if weights is not None and _two_streams(weights) else STEPS)
    weights = None if weights is None else list(weights)
    if weights is not None and all(layer is None for layer in weights):
        raise ValueError(
            "`outputs` must hold the attention weights of every layer, got none: load the model with "
            'attn_implementation="eager", because other implementations do not form them'
        )
    if weights is not None:
        weights = _of_attention(weights, config)
    if decoder_attention_mask is not None and part != "cross":
        raise ValueError(
            '`decoder_attention_mask` must be None unless part="cross", got one: for the decoder\'s attention on '
            "itself it is the `attention_mask`"
        )
    first: tuple[str, ...] = ()
    if weights is not None:
        weights, attention_mask, options, first = _on_filled_keys(
            weights, attention_mask, options, config, part == "cross"
        )
    if weights is not None and (part == "cross" or _rectangular(weights)):
        known = {"causal": False} if part == "cross" else {}
        rows = None
        if decoder_attention_mask is not None:
            rows = _of_decoder(weights, decoder_attention_mask, options.get("mask"))
        notes = () if states is None else ("Hidden states are left out: they are those of the queries alone.",)
        return _of_rectangles(weights, attention_mask, config, known | options, (*notes, *first), part == "cross", rows)
    texts, cut = None, False
    if attention_mask is not None:
        kept: Any = states if weights is None else [layer for layer in weights if layer is not None]
        shape = inputs.layers_of("outputs", list(kept), ("tokens", "features"), stacked=4).shape
        texts, cut = _texts(attention_mask, shape[0], shape[-2])
    parts: list[Diagnosis] = []
    if weights is not None:
        depth = None if states is None else len(states) - 1
        known = {"segment_ids": np.where(texts < 0, PADDING, texts + 1)} if cut and texts is not None else {}
        diagnosis, found = _of_weights(weights, depth, texts, config, known | options, first)
        texts = found.keys
        parts.append(diagnosis)
    if states is not None:
        ids = None if texts is None else np.where(texts < 0, PADDING, texts + 1)
        of_states = hidden_states(list(states), segment_ids=ids)
        last = _field(outputs, "encoder_last_hidden_state" if part == "encoder" else "last_hidden_state")
        parts.append(dataclasses.replace(of_states, notes=(*of_states.notes, *_before_norm(states[-1], last))))
    return parts[0] | parts[1] if len(parts) == 2 else parts[0]


def _before_norm(state: Any, returned: Any) -> tuple[str, ...]:
    """A note where the model returns something else than its last hidden state, as a final norm makes of it."""
    if returned is None or tuple(returned.shape) != tuple(state.shape):
        return ()
    if np.array_equal(inputs.on_host(state), inputs.on_host(returned)):
        return ()
    return (
        "The last state is not the model's last_hidden_state: what follows the last layer, as a rule the final norm, "
        "is not in it.",
    )


def _named(outputs: Any) -> Any:
    """Attentions and hidden states by name, of the tuple that `return_dict=False` gives; anything else as it is."""
    if hasattr(outputs, "text_model_output") or hasattr(outputs, "vision_model_output"):
        raise TypeError(
            f"`outputs` must be those of one model, got {type(outputs).__name__} of two: pass its text_model_output or "
            "its vision_model_output"
        )
    if not isinstance(outputs, tuple | list) or hasattr(outputs, "_fields"):
        return outputs
    layers = [each for each in outputs if isinstance(each, tuple | list) and each and all(_is_array(x) for x in each)]
    by_axes = {axes: [each for each in layers if all(x.ndim == axes for x in each)] for axes in (4, 3)}
    weights = [each for each in by_axes[4] if all(x.shape[-1] == x.shape[-2] for x in each)]
    if len(weights) > 1 or len(by_axes[3]) > 1 or not (weights or by_axes[3]):
        raise TypeError(
            "`outputs` must have attentions or hidden states by name, got a tuple, as of return_dict=False, with "
            f"{len(weights)} groups of arrays of square weights and {len(by_axes[3])} of states: pass "
            '{"attentions": …, "hidden_states": …}'
        )
    return dict(zip(FIELDS, (next(iter(each), None) for each in (weights, by_axes[3])), strict=True))


def _is_array(value: Any) -> bool:
    return hasattr(value, "ndim") and hasattr(value, "shape")


def _two_streams(weights: Any) -> bool:
    """Whether each layer holds the weights of two streams of one shape, as XLNet's do; steps differ in theirs."""
    pairs = all(isinstance(each, list | tuple) and len(each) == 2 for each in weights)
    shapes = {tuple(x.shape) for each in weights for x in each if _is_array(x)} if pairs else set()
    return pairs and len(weights) > 1 and len(shapes) == 1


def _of_attention(weights: list[Any], config: Any) -> list[Any]:
    """`None` in the place of arrays that linear layers of a hybrid model give beside those of its attention."""
    kinds = getattr(_text(config), "layer_types", None)
    if kinds is None or len(kinds) != len(weights):
        return weights
    return [each if _attends(kind) else None for kind, each in zip(kinds, weights, strict=True)]


def _of_part(config: Any, part: str | None) -> Any:
    """The configuration of the attention that is asked for; `None` where none states it."""
    if isinstance(config, str | Mapping) or hasattr(config, "config"):
        raise TypeError(f"`config` must be the configuration of a model, model.config, got {type(config).__name__}")
    if part is None:
        return config
    own = getattr(config, part, None)  # as of T5Gemma; others have settings of both in one, and state no windows
    if hasattr(own, "model_type"):
        return own
    return config if part != "cross" and hasattr(config, "layer_types") else None


def _text(config: Any) -> Any:
    """The part of a configuration that is about text."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _check_stages(weights: list[Any], config: Any) -> None:
    shapes = [tuple(each.shape) for each in weights if each is not None]
    if len(set(shapes)) > 1 and all(_is_array(each) for each in weights if each is not None):
        stages = ", ".join(map(str, dict.fromkeys(shapes)))
        hybrid = "; of a hybrid model pass config=model.config, which says which layers have attention, and a window"
        raise ValueError(
            f"`outputs` must have weights of one shape in all layers, got {stages}: of stages, as in Swin and Funnel, "
            "or of caches that keep different numbers of keys, as of chunks, diagnose each, "
            '{"attentions": [each for each in outputs.attentions if each.shape == …]}'
            f"{hybrid if config is None else ''}"
        )


def _rectangular(weights: list[Any]) -> bool:
    """Whether queries are not the tokens that they look at."""
    return any(layer is not None and layer.ndim > 1 and layer.shape[-1] != layer.shape[-2] for layer in weights)


def _on_filled_keys(
    weights: list[Any], attention_mask: Any, options: dict[str, Any], config: Any, cross: bool
) -> tuple[list[Any], Any, dict[str, Any], tuple[str, ...]]:
    """Weights of all layers on the keys that a cache holds, what is said of these, and notes."""
    notes: tuple[str, ...] = ()
    if not cross:
        weights, attention_mask, options, notes = _on_all_keys(weights, attention_mask, options, config)
    _check_stages(weights, config)
    if cross or notes or not _rectangular(weights):
        return weights, attention_mask, options, notes
    attention_mask, gone = _of_kept_keys(attention_mask, weights, config)
    weights, attention_mask, options, notes = _without_empty_places(weights, attention_mask, options)
    return weights, attention_mask, options, (*gone, *notes)


def _on_all_keys(
    weights: list[Any], attention_mask: Any, options: dict[str, Any], config: Any
) -> tuple[list[Any], Any, dict[str, Any], tuple[str, ...]]:
    """Layers of a hybrid model whose caches keep a window, on the keys of those that keep all; and notes.

    The keys that a window's cache no longer has come in front, with weight 0; the window hides them.
    """
    size, near = _sliding(config, weights)
    given = [index for index, layer in enumerate(weights) if layer is not None]
    short = {index for index, is_near in zip(given, near, strict=True) if is_near}
    widths = {tuple(weights[index].shape)[-1] for index in given}
    if len(widths) == 1 or not short or len(short) == len(given):
        return weights, attention_mask, options, ()
    for name in ("mask", "values"):
        if isinstance(options.get(name), list | tuple):
            raise ValueError(
                f"`{name}` must be one array where layers look at different numbers of keys, {sorted(widths)}, got a "
                "list: diagnose layers of each number by themselves"
            )
    far = [None if index in short else layer for index, layer in enumerate(weights)]
    _check_stages(far, config)
    far, attention_mask, options, notes = _without_empty_places(far, attention_mask, options)
    some = [layer for layer in far if layer is not None]
    queries, keys = some[0].shape[-2:]
    layers = [None if layer is None else inputs.to_jax("outputs", layer) for layer in far]
    for index in short:
        layer, own = weights[index], weights[index].shape[-1]
        used = own if own <= keys else keys_used(inputs.layers_of("outputs", [layer], ("queries", "keys"), stacked=5))
        if used > keys or (own < keys and own != size - 1 + queries):
            raise ValueError(
                f"`outputs` must have, in layers of a window of {size}, weights on the last {size} − 1 + {queries} of "
                f"{keys} keys, got {own} in layer {index}: if the other layers have empty places of a static cache, "
                "pass an `attention_mask`, with a number for each key that is filled"
            )
        layer = inputs.to_jax("outputs", layer)
        layers[index] = layer[..., :keys] if own >= keys else _behind_zeros(layer, keys)
    note = (
        f"Layers of a window keep fewer than {keys} keys: it hides the others, and measures of the first key are NaN "
        "where it is one of them."
    )
    return layers, attention_mask, options, (*notes, note)


def _behind_zeros(layer: jax.Array, keys: int) -> jax.Array:
    """Weights on the last of so many keys. Rows that are even over more keys than a window has see nothing."""
    *_, queries, own = layer.shape
    whole = jnp.pad(layer, [(0, 0)] * (layer.ndim - 1) + [(keys - own, 0)])
    most, least = (each.astype(jnp.float32) for each in (layer.max(-1), layer.min(-1)))
    even = (least > 0) & (most - least <= 1e-5 * most) & (queries > 1)
    return jnp.where(even[..., None], jnp.asarray(1 / keys, layer.dtype), whole)


def _of_kept_keys(attention_mask: Any, weights: list[Any], config: Any) -> tuple[Any, tuple[str, ...]]:
    """What an attention mask says of the keys that the cache of a window keeps, where it is longer; and a note.

    The last token that it names is the last key with weight: zeros behind are padding, or empty places of a cache.
    """
    some = [layer for layer in weights if layer is not None]
    layers = inputs.layers_of("outputs", some, ("heads", "queries", "keys"), stacked=5)
    queries, keys = layers.shape[-2:]
    if attention_mask is None or np.ndim(attention_mask) != 2 or np.shape(attention_mask)[-1] <= keys:
        return attention_mask, ()
    mask = inputs.on_host(attention_mask)
    size, near = _sliding(config, weights)
    named = int(np.flatnonzero((mask != 0).any(0)).max(initial=-1)) + 1
    start = min(named - keys_used(layers), mask.shape[-1] - keys)
    if not all(near) or start < 0 or (start > 0 and keys != size - 1 + queries):
        kept = f", or the {size} − 1 + {queries} that a window of {size} keeps of more tokens" if all(near) else ""
        raise ValueError(
            f"`attention_mask` must have a number for each of {keys} keys{kept}, got "
            f"{inputs.described(attention_mask)}: a longer one goes with a cache that keeps a window alone, which "
            "config=model.config states"
        )
    gone = (
        f"The caches of all layers keep {keys} keys, and {start} tokens before them are gone: keys are counted from "
        "the first one that is kept, and measures of the first key are those of it, which is no first token.",
    )
    return mask[:, start : start + keys], gone if start > 0 else ()


def _without_empty_places(
    weights: list[Any], attention_mask: Any, options: dict[str, Any]
) -> tuple[list[Any], Any, dict[str, Any], tuple[str, ...]]:
    """Weights, masks and values without the places of a static cache that are empty in all samples, and a note.

    A mask that is narrower than the weights says how many are filled.
    """
    some = [layer for layer in weights if layer is not None]
    layers = inputs.layers_of("outputs", some, ("heads", "queries", "keys"), stacked=5)
    samples, keys = layers.shape[0], layers.shape[-1]
    mask, ids = options.get("mask"), options.get("segment_ids")
    masks: list[Any] = [*mask] if isinstance(mask, list | tuple) else [mask]
    stated = [each for each in (attention_mask, ids, *masks) if each is not None and not isinstance(each, str)]
    widths = {np.shape(each)[-1] for each in stated if np.ndim(each)}
    narrow = max((width for width in widths if 1 < width < keys), default=None)
    unchanged = weights, attention_mask, options, ()
    if narrow is not None:
        where = Place(0, narrow, True, True)
        if keys_used(layers) > narrow:
            return unchanged
    else:
        texts = None if attention_mask is None else _texts(attention_mask, samples, keys)[0]
        where = place(layers, mask=mask, segment_ids=ids, causal=options.get("causal"), texts=texts)
    filled = where.filled
    if filled == keys or not where.causal:
        return unchanged
    attention_mask, ids = (None if each is None else inputs.on_host(each) for each in (attention_mask, ids))
    for name, value in (("attention_mask", attention_mask), ("segment_ids", ids)):
        if value is not None:
            behind = value[..., filled:] > 0
            if behind.any() and not behind.all():
                raise ValueError(
                    f"`{name}` must be {'0' if name == 'attention_mask' else 'negative'} behind the {filled} keys that "
                    "are filled, as the last one with weight tells: a number for each of them comes first, and "
                    "those for empty places of a static cache follow"
                )

    def cut(value: Any, axis: int = -1) -> Any:
        """The filled places of an array, or of each in a list."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, list | tuple):
            return [cut(each, axis) for each in value]
        return value[..., :filled] if axis == -1 else value[..., :filled, :]

    options = options | {"mask": cut(mask), "segment_ids": cut(ids), "values": cut(options.get("values"), -2)}
    notes = (f"The cache has {keys} places.", empty_places(where))
    return [cut(layer) for layer in weights], cut(attention_mask), options, notes


def _of_decoder(weights: list[Any], decoder_attention_mask: Any, mask: Any) -> np.ndarray:
    """True where a query of cross-attention is no padding, (sample, query)."""
    some = [layer for layer in weights if layer is not None]
    shape = inputs.layers_of("outputs", some, ("heads", "queries", "keys"), stacked=5).shape
    rows = _texts(decoder_attention_mask, shape[0], shape[-2], "decoder_attention_mask", least=1)[0] >= 0
    if isinstance(mask, str):
        raise ValueError(f"`mask` must be an array beside `decoder_attention_mask`, got {mask!r}")
    return rows


def _of_rectangles(
    weights: list[Any],
    attention_mask: Any,
    config: Any,
    options: dict[str, Any],
    notes: tuple[str, ...],
    cross: bool,
    rows: np.ndarray | None,
) -> Diagnosis:
    """Attention of the decoder on the encoder, or of the last tokens on all."""
    some = [layer for layer in weights if layer is not None]
    *samples, _, queries, keys = inputs.layers_of("outputs", some, ("heads", "queries", "keys"), stacked=5).shape
    texts, numbered = None, {}
    if attention_mask is not None:
        if not cross and np.shape(attention_mask) == (samples[0], queries):
            raise ValueError(
                f"`attention_mask` must have the shape {(samples[0], keys)}, a number for each key, got "
                f"{np.shape(attention_mask)}: keys in front of the text, such as those of prefix tuning or of a cache, "
                "count too, so put ones in front, and zeros behind for empty places of a static cache"
            )
        texts, cut = _texts(attention_mask, samples[0], keys)
        numbered = {"segment_ids": np.where(texts < 0, PADDING, texts + 1)} if cut else {}
    return _of_weights(weights, None, texts, config, numbered | options, notes, own=False, rows=rows)[0]


def _field(outputs: Any, name: str) -> Any:
    """A field of an object or a mapping; `None` where there is none."""
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _described(outputs: Any) -> str:
    names = ", ".join(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
    return names or "nothing"


def _texts(
    attention_mask: Any, batch: int, tokens: int, name: str = "attention_mask", least: int = 2
) -> tuple[np.ndarray, bool]:
    """Numbers of texts (text, token), −1 for padding; and whether the mask numbers them, 1, 2, …, in a row.

    Some text must have the `least` number of tokens.
    """
    mask = inputs.on_host(attention_mask)
    if mask.dtype.kind not in "bui":
        raise TypeError(
            f"`{name}` must hold 0 and 1 as whole numbers or booleans, got {inputs.described(attention_mask)}"
        )
    if mask.shape != (batch, tokens):
        raise ValueError(f"`{name}` must have the shape {(batch, tokens)}, got {inputs.described(attention_mask)}")
    mask = mask.astype(int)
    if not (mask != 0).sum(1).max() >= least:
        tokens_left = "two tokens" if least == 2 else "one token"
        raise ValueError(f"`{name}` must leave at least {tokens_left} in some text")
    return segments(name, np.where(mask == 0, PADDING, mask), batch, tokens), bool((mask > 1).any())


def _of_weights(
    weights: list[Any],
    depth: int | None,
    texts: np.ndarray | None,
    config: Any,
    options: dict[str, Any],
    first: tuple[str, ...] = (),
    own: bool | None = None,
    rows: np.ndarray | None = None,
) -> tuple[Diagnosis, Texts]:
    """Attention of the layers that have some, among the tokens that are real, and which texts they belong to.

    Args:
        weights: of each layer of attention, or of each layer of the model with `None` for others.
        depth: how many layers the model has, where hidden states tell.
        texts: −1 where a token is padding; `None` where nobody has said.
        config: of the model, or `None`.
        options: of `attention`.
        first: notes that come first.
        own: as in `diagnose`.
        rows: as there.
    """
    text = _text(config)
    kinds = getattr(text, "layer_types", None)
    given = [index for index, layer in enumerate(weights) if layer is not None]
    layers, notes = [weights[index] for index in given], [*first]
    # Which layers of the model these are.
    attending = given if kinds is None else [index for index, kind in enumerate(kinds) if _attends(kind)]
    if len(given) == len(weights) == len(attending):
        numbers = attending
    elif kinds is not None and len(weights) not in (len(attending), len(kinds)):
        raise ValueError(
            f"`config` must be that of the model, whose layer_types name {len(attending)} layers of attention among "
            f"{len(kinds)}, got weights of {len(weights)}"
        )
    else:
        numbers = given
    if depth is not None and kinds is None and len(weights) != depth:
        notes.append(
            f"The model has {depth} layers, and {len(weights)} of them gave weights. These are counted from 0 in their "
            "own order, which is not that of the hidden states: pass config=model.config for their numbers."
        )
    windows = None if config is None else _windows(text, numbers, layers, texts)
    return diagnose(layers, texts=texts, windows=windows, numbers=numbers, notes=notes, own=own, rows=rows, **options)


def _attends(kind: str) -> bool:
    """Whether a kind of `config.layer_types` has attention weights: "full_attention" and "hybrid", not "mamba"."""
    return ("attention" in kind and "linear" not in kind) or kind == "hybrid"


def _sliding(config: Any, weights: list[Any]) -> tuple[int, list[bool]]:
    """The size of the windows that a config states, and which of the layers with weights have one."""
    text = _text(config)
    kinds, size = getattr(text, "layer_types", None), getattr(text, "sliding_window", None)
    given = [index for index, layer in enumerate(weights) if layer is not None]
    if not isinstance(size, int):
        return 0, [False] * len(given)
    if kinds is None:
        return size, [bool(getattr(text, "use_sliding_window", True))] * len(given)
    if len(kinds) != len(weights):
        kinds = [kind for kind in kinds if _attends(kind)]
    return size, [index < len(kinds) and kinds[index] == "sliding_attention" for index in given]


def _windows(config: Any, numbers: list[int], layers: list[Any], texts: np.ndarray | None) -> list[np.ndarray | None]:
    """What queries may see beside causality, where `layer_types` and a size say it; `None` where they do not.

    A config that names neither states nothing: its layers may have windows under other names, or packed texts. Of later
    keys a config says nothing: all of them are open here, but for those beyond a window of both sides.
    """
    kinds, (queries, keys) = getattr(config, "layer_types", None), layers[0].shape[-2:]
    size, chunk = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    used = isinstance(size, int) and getattr(config, "use_sliding_window", True)
    alone = "sliding_attention" if used else "chunked_attention" if isinstance(chunk, int) else None
    behind = np.arange(keys - queries, keys)[:, None] - np.arange(keys)[None]  # queries are the last tokens
    distance = np.abs(behind)
    # A cache of so many keys or more may have lost tokens, and the ends of its chunks with them.
    lost = isinstance(chunk, int) and queries < keys and keys >= chunk - 1 + queries
    made: dict[Any, np.ndarray] = {"full_attention": np.ones((queries, keys), bool)}
    windows: list[np.ndarray | None] = []
    for number, weights in zip(numbers, layers, strict=True):
        kind = alone if kinds is None else kinds[number]
        if kind == "sliding_attention" and kind not in made and isinstance(size, int):
            # Causal layers see `size` keys, their own among them; others so many to each side.
            one = inputs.layers_of("outputs", [weights], ("tokens", "tokens"), stacked=4)
            made[kind] = distance <= size if farthest(one, distance == size) else distance < size
            if farthest(one, behind < -size):  # a prefix, or pictures whose tokens see each other
                made[kind] = behind < size
        if kind == "chunked_attention" and kind not in made and isinstance(chunk, int) and not lost:
            made[kind] = _same_chunk(behind, chunk, texts)
        windows.append(made.get(kind))
    return windows


def _same_chunk(behind: np.ndarray, size: int, texts: np.ndarray | None) -> np.ndarray:
    """Whether keys are of the chunk of their query, or later; chunks start at the first token that is no padding."""
    queries, keys = behind.shape
    start = np.zeros((1, 1), int) if texts is None else (texts >= 0).argmax(1)[:, None]
    chunk = (np.arange(keys) - start) // size
    return (chunk[:, keys - queries :, None] == chunk[:, None]) | (behind < 0)
