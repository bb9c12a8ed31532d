"""Attention weights of models of PyTorch, without a change to the model; torch is imported when it is asked for."""

import contextlib
import importlib
import inspect
from collections.abc import Generator
from typing import Any

from rc_jax._numerics import arguments

# Arguments of `nn.MultiheadAttention`, in order.
NAMES = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")


def torch_weights(model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Call a model of PyTorch and return the weights of every `nn.MultiheadAttention` in it, in the order of calls.

    The call is one more forward pass, in evaluation mode and without gradients: weights are those without dropout, and
    neither the training's random numbers nor its running averages change. Each of these layers is asked for the weights
    of every head, and still returns to the model what the model asked for: none, their mean over heads, or all.
    Afterwards the model is as it was. `nn.TransformerEncoder` and its kin are made of these layers.

    Args:
        model: the module.
        args: what the model is called with; a few samples of a batch are enough.
        kwargs: what the model is called with.

    Returns:
        Tensors (batch, heads, queries, keys) by the layer's name, such as "layers.0.self_attn". Further calls of a
        layer are "layers.0.self_attn, call 2" and so on. `rc_jax.diagnostics.metrics` takes the dict itself,
        `rc_jax.diagnostics.attention` a list of its values.

    Raises:
        ValueError: no such layer was called.

    Example:
        >>> import torch
        >>> from rc_jax import diagnostics
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> weights = diagnostics.torch_weights(model, torch.ones(3, 5, 8))
        >>> {name: tuple(tensor.shape) for name, tensor in weights.items()}
        {'layers.0.self_attn': (3, 2, 5, 5), 'layers.1.self_attn': (3, 2, 5, 5)}
    """
    torch: Any = importlib.import_module("torch")  # which the package does without
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"`model` must be a module of PyTorch, got {arguments.describe(model)}")
    layers = {name: each for name, each in model.named_modules() if isinstance(each, torch.nn.MultiheadAttention)}
    by_name: dict[str, Any] = {}
    with _evaluating(model), contextlib.ExitStack() as hooks, torch.no_grad():
        for name, layer in layers.items():
            ask, keep = _hooks(name, by_name)
            # After the model's own hooks on the arguments, and before its own on what the layer returns.
            for handle in (
                layer.register_forward_pre_hook(ask, with_kwargs=True),
                layer.register_forward_hook(keep, prepend=True),
            ):
                hooks.callback(handle.remove)
        model(*args, **kwargs)
    if not by_name:
        seen = f"{len(layers)} such layers, none of them called" if layers else "no such layer"
        raise ValueError(
            f"`model` must call a layer of nn.MultiheadAttention, got {seen} in {type(model).__name__}: with queries "
            "and keys at hand, rc_jax.diagnostics.score_metrics needs no weights"
        )
    return by_name


def _hooks(name: str, by_name: dict[str, Any]) -> tuple[Any, Any]:
    """One hook that asks a layer for the weights of every head, and one that keeps them.

    They are kept under the layer's name, or under the number of the call. The second hook returns what the caller of
    the layer asked for, so that a model which goes on with these weights computes what it computes without hooks.
    """
    calls, asked = 0, (True, True)

    def ask(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        nonlocal asked
        given = dict(zip(NAMES, args, strict=False)) | kwargs
        usual = {each.name: each.default for each in inspect.signature(layer.forward).parameters.values()} | given
        asked = usual.get("need_weights", True), usual.get("average_attn_weights", True)
        return (), given | {"need_weights": True, "average_attn_weights": False}

    def keep(layer: Any, args: Any, output: Any) -> Any:
        nonlocal calls
        calls += 1
        attended, weights, *more = output
        by_name[name if calls == 1 else f"{name}, call {calls}"] = weights.detach()
        needed, averaged = asked
        return attended, None if not needed else weights.mean(-3) if averaged else weights, *more

    return ask, keep


@contextlib.contextmanager
def _evaluating(model: Any) -> Generator[None]:
    """Every part in evaluation mode, and no part by a fused path that leaves attention layers out."""
    torch: Any = importlib.import_module("torch")  # which the package does without
    modes = {part: part.training for part in model.modules()}
    fused = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for part, training in modes.items():
            part.training = training
