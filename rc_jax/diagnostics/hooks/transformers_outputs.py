"""Diagnosis of what a model of the transformers library returns, in one call; the library itself is not imported."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from rc_jax._numerics import arguments
from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.diagnosis import Diagnosis
from rc_jax.diagnostics.states import hidden_states
from rc_jax.diagnostics.weights import attention

PARTS = (None, "encoder", "decoder")
FIELDS = ("attentions", "hidden_states")


@arguments.guard(part=arguments.one_of(PARTS))
def from_transformers(
    outputs: Any, *, attention_mask: Any = None, part: str | None = None, **options: Any
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
        part: "encoder" or "decoder" of a model that has both; attention of one on the other is not diagnosed.
        options: passed on to `attention`, such as `threshold`.

    Returns:
        A `Diagnosis`; the batch makes its samples.

    Raises:
        TypeError: `outputs` has neither attentions nor hidden states, or these are not arrays.
        ValueError: the attentions are empty, or `part` or `attention_mask` does not fit; and whatever `attention` and
            `hidden_states` raise.

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
        raise ValueError("`part` must be 'encoder' or 'decoder' for a model that has both, got None")
    names = [name if part is None else f"{part}_{name}" for name in FIELDS]
    weights, states = (_field(outputs, name) for name in names)
    if weights is None and states is None and part is not None:
        raise ValueError(f"`part` must be None for outputs without {' and '.join(names)}, got {part!r}")
    if weights is None and states is None:
        raise TypeError(
            "`outputs` must have attentions or hidden states: call the model with output_attentions=True and "
            f"output_hidden_states=True, got {_described(outputs)}"
        )
    if weights is not None and (not len(weights) or any(layer is None for layer in weights)):
        raise ValueError(
            "`outputs` must hold the attention weights of every layer, got none: load the model with "
            'attn_implementation="eager", because other implementations do not form them'
        )
    real = None
    if attention_mask is not None:
        layers: Any = states if weights is None else weights
        shape = inputs.layers_of("outputs", list(layers), ("tokens", "features"), stacked=4).shape
        real = _real(attention_mask, shape[0], shape[-2])
    parts: list[Diagnosis] = []
    if weights is not None:
        parts.append(_of_weights(weights, real, options))
    if states is not None:
        parts.append(hidden_states(list(states), mask=real))
    return parts[0] | parts[1] if len(parts) == 2 else parts[0]


def _field(outputs: Any, name: str) -> Any:
    """A field of an object or a mapping; `None` where there is none."""
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _described(outputs: Any) -> str:
    names = ", ".join(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
    return names or "nothing"


def _real(attention_mask: Any, batch: int, tokens: int) -> Bool[np.ndarray, "text token"] | None:
    """True where a token is no padding; `None` where none is.

    Raises:
        TypeError: it is not an array of whole numbers or booleans.
        ValueError: it does not fit, or leaves a text with fewer than two tokens.
    """
    mask = np.asarray(attention_mask.cpu() if inputs.is_torch(attention_mask) else attention_mask)
    if mask.dtype.kind not in "bui":
        raise TypeError(f"`attention_mask` must hold 0 and 1, got {inputs.described(attention_mask)}")
    if mask.shape != (batch, tokens):
        raise ValueError(
            f"`attention_mask` must have the shape {(batch, tokens)}, got {inputs.described(attention_mask)}"
        )
    real = mask != 0
    if (real.sum(1) < 2).any():
        raise ValueError("`attention_mask` must leave at least two tokens in every text")
    return None if real.all() else real


def _of_weights(weights: Any, real: np.ndarray | None, options: dict[str, Any]) -> Diagnosis:
    """Attention among the tokens that are real."""
    if real is None:
        return attention(list(weights), **options)
    if options.get("mask") is not None:
        raise ValueError("`mask` must be left out where `attention_mask` has padding, got both")
    # Padding goes to the end, so that the first token is the first real one.
    order = np.argsort(~real, axis=1, kind="stable")
    real = np.take_along_axis(real, order, axis=1)
    layers = list(weights)
    if (order != np.arange(order.shape[1])).any():
        layers = [_moved(inputs.to_jax("outputs", layer), order) for layer in layers]
        if options.get("values") is not None:
            options["values"] = _moved_values(options["values"], order)
    options["mask"] = real[:, None, :, None] & real[:, None, None, :]
    return attention(layers, **options)


def _moved(weights: Array, order: np.ndarray) -> Array:
    """Rows and columns of each text in another order."""
    rows = jnp.take_along_axis(weights, jnp.asarray(order)[:, None, :, None], axis=-2)
    return jnp.take_along_axis(rows, jnp.asarray(order)[:, None, None, :], axis=-1)


def _moved_values(values: Any, order: np.ndarray) -> Any:
    """The tokens of each text in another order; values that do not fit the weights stay, to be refused with these."""
    layers = inputs.layers_of("values", values, ("texts", "heads", "tokens", "features"), stacked=5)
    if (layers.shape[0], layers.shape[-2]) != order.shape:
        return values
    index = jnp.asarray(order)[:, None, :, None]
    return [jnp.take_along_axis(layers[layer], index, axis=-2) for layer in range(len(layers))]
