"""Attention weights of models of `flax.nnx`, without a change to the model; flax is imported when it is asked for."""

import functools
from typing import Any

import jax

from rc_jax._numerics import arguments

NAME = "attention_weights"  # under which `flax.nnx.MultiHeadAttention` sows


def flax_weights(model: Any, *args: Any, method: Any = None, **kwargs: Any) -> dict[str, Any]:
    """Call a model of `flax.nnx` and return the weights of every `nnx.MultiHeadAttention` in it, in the order of calls.

    The call is made on a second model that shares the arrays of the first, which stays as it is, counts of its random
    numbers and running averages included. There each of these layers is asked to sow its weights, and `nnx.capture`
    collects them. Layers of your own count too if they sow under the name "attention_weights". Weights are those before
    dropout. It works in `jax.jit` and `nnx.jit`, through `nnx.remat` and through `nnx.scan`, where weights have a
    leading axis of layers.

    Args:
        model: the module.
        args: what the model is called with.
        method: what is called in place of the model, with it as first argument, such as `Model.encode`.
        kwargs: what the model is called with.

    Returns:
        Arrays (batch, heads, queries, keys) by the layer's place, such as "blocks.0.attention". The further calls of
        one layer are "blocks.0.attention, call 2" and so on. `rc_jax.diagnostics.attention` takes a list of them,
        `rc_jax.diagnostics.metrics` the dict itself.

    Raises:
        ValueError: no attention weights were sown.

    Example:
        >>> import jax
        >>> from flax import nnx
        >>> from rc_jax import diagnostics
        >>> model = nnx.Sequential(*(nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(i)) for i in range(2)))
        >>> weights = diagnostics.flax_weights(model, jax.random.normal(jax.random.key(0), (3, 5, 8)))
        >>> {place: array.shape for place, array in weights.items()}
        {'layers.0': (3, 2, 5, 5), 'layers.1': (3, 2, 5, 5)}
    """
    from flax import nnx

    if not isinstance(model, nnx.Module):
        raise TypeError(f"`model` must be a module of flax.nnx, got {arguments.describe(model)}")
    if method is not None and not callable(method):
        raise TypeError(f"`method` must be a function of the model, got {arguments.describe(method)}")
    if not hasattr(nnx, "capture"):
        raise ImportError("`flax_weights` needs a flax that has nnx.capture, such as 0.12.8: pip install -U flax")
    # In a second model of the same arrays, each attention layer becomes one of a class that sows.
    _calls.clear()
    copy = nnx.merge(*nnx.split(model))
    layers = [layer for _, layer in nnx.iter_modules(copy) if isinstance(layer, nnx.MultiHeadAttention)]
    for layer in layers:
        layer.__class__ = _sowing(type(layer))
    call = type(copy).__call__ if method is None else method
    _, sown = nnx.capture(call, nnx.Intermediate)(copy, *args, **kwargs)
    by_module: dict[str, jax.Array] = {}
    for (*path, name), variable in nnx.to_flat_state(sown):
        if name == NAME:
            place = ".".join(map(str, path))
            for number, weights in enumerate(variable.get_value()):
                by_module[place if number == 0 else f"{place}, call {number + 1}"] = weights
    if not by_module:
        seen = f"{len(layers)} such layers, none of them called" if layers else "no such layer"
        if _calls:
            seen = "layers whose own `attention_fn` ignores `module=`, and so sows nothing,"
        raise ValueError(
            f"`model` must call a layer of nnx.MultiHeadAttention, or one that sows {NAME!r}, got {seen} in "
            f"{type(model).__name__}"
        )
    return by_module


_calls: list[type] = []  # kinds of the layers that were called since the last start


@functools.cache
def _sowing(kind: type) -> type:
    """A class of attention layers that sow their weights at every call; the same one each time for a kind."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _calls.append(kind)
        return kind.__call__(self, *args, **(kwargs | {"sow_weights": True}))

    return type(kind.__name__, (kind,), {"__call__": call})
