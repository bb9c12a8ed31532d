"""Attention weights of models of `flax.nnx`, without a change to the model; flax is imported when it is asked for."""

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import jax

from rc_jax._numerics import arguments
from rc_jax._numerics.jax_names import trace_state

NAME = "attention_weights"  # under which `flax.nnx.MultiHeadAttention` sows


def flax_weights(model: Any, *args: Any, method: Any = None, **kwargs: Any) -> dict[str, Any]:
    """Call a model of `flax.nnx` and return the weights of every `nnx.MultiHeadAttention` in it, in the order of calls.

    The call is made on a second model that shares the arrays of the first, which stays as it is, counts of its random
    numbers and running averages included. There each of these layers is asked to sow its weights, and `nnx.capture`
    collects them. Layers of your own count too if they sow under the name "attention_weights". Weights are those before
    dropout. It works in `jax.jit` and `nnx.jit`, through `nnx.remat` and through `nnx.scan`, where weights have a
    leading axis of layers. What a compiled part of the model calls, and in which order, is found by one more call,
    which is traced and not computed, unless the model looks at numbers.

    Args:
        model: the module.
        args: what the model is called with.
        method: what is called in place of the model, with it as first argument, such as `Model.encode`.
        kwargs: what the model is called with.

    Returns:
        Arrays (batch, heads, queries, keys) by the layer's place, such as "blocks.0.attention", in the order in which
        the layers are first called. The further calls of one layer are "blocks.0.attention, call 2" and so on, right
        behind its first. `rc_jax.diagnostics.attention` takes a list of them, `rc_jax.diagnostics.metrics` the dict
        itself.

    Raises:
        ValueError: no attention weights were sown, or they were in `jax.vmap` or the like, which does not hand them
            out.

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
    _calls.clear()
    sown, order = _captured(model, method, args, kwargs)
    if not sown:
        layers = [each for _, each in nnx.iter_modules(model) if isinstance(each, nnx.MultiHeadAttention)]
        seen = f"{len(layers)} such layers, none of them called" if layers else "no such layer"
        if _calls:
            seen = "layers whose own `attention_fn` ignores `module=`, and so sows nothing,"
        raise ValueError(
            f"`model` must call a layer of nnx.MultiHeadAttention, or one that sows {NAME!r}, got {seen} in "
            f"{type(model).__name__}"
        )
    if len(sown) == 1:
        order = list(sown)
    elif Counter(order) != {place: len(values) for place, values in sown.items()}:
        order = _order_in_traces(model, method, args, kwargs)
    return {
        place if number == 0 else f"{place}, call {number + 1}": weights
        for place in sorted(sown, key=order.index)
        for number, weights in enumerate(sown[place])
    }


def _captured(
    model: Any, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, into_traces: bool = False
) -> tuple[dict[str, Any], list[str | None]]:
    """What is sown at each place in a call of a second model, and the places in the order in which they sow.

    In a trace, of `nnx.jit` and its kin, modules are others, made for it: the order has `None` for them, and nothing
    where the trace was made before. `into_traces` marks modules so that they are known there, and that no trace fits
    that was made before.
    """
    from flax import nnx

    # In a second model of the same arrays, each attention layer becomes one of a class that sows.
    copy = nnx.merge(*nnx.split(model), copy=True)  # or both would have the same counts and running averages
    modules = [(".".join(map(str, path)), module) for path, module in nnx.iter_modules(copy)]
    for place, module in modules:
        if isinstance(module, nnx.MultiHeadAttention):
            module.__class__ = _sowing(type(module))
        if into_traces:
            setattr(module, _Mark.ATTRIBUTE, _Mark(place))
    places = {id(module): place for place, module in modules}
    order: list[str | None] = []
    outside = trace_state()

    def note(module: Any) -> None:
        place = places.get(id(module))
        if place is not None and trace_state() != outside:  # a tracer would stay in the module when its trace is over
            raise ValueError(_LOST.format(f"{place!r} called"))
        mark = getattr(module, _Mark.ATTRIBUTE, None)
        order.append(place if mark is None else mark.place)

    call = type(copy).__call__ if method is None else method
    try:
        with _noting(note):
            _, state = nnx.capture(call, nnx.Intermediate)(copy, *args, **kwargs)
    except (TypeError, ValueError) as error:
        if "__captures__" in str(error):  # of `nnx.vmap` and `nnx.scan`, which were told of no axis of the weights
            raise ValueError(_LOST.format("a layer")) from error
        raise
    sown = {
        ".".join(map(str, path)): variable.get_value()
        for (*path, name), variable in nnx.to_flat_state(state)
        if name == NAME
    }
    return sown, order


_LOST = (
    "`model` must call attention layers where what they sow is kept, got {} in jax.vmap or another transformation that "
    "does not hand it out: pass the layer the whole batch, since it takes any axes in front, or make the layer an "
    "argument of nnx.jit, nnx.remat, or nnx.vmap and nnx.scan, these with "
    "nnx.StateAxes({{nnx.Intermediate: 0, ...: None}}) as its axes"
)


class _Mark:
    """The place of a module, among its static attributes; equal to no other, so that traces are made anew."""

    ATTRIBUTE = "rc_jax_place"

    def __init__(self, place: str):
        self.place = place


def _order_in_traces(model: Any, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str | None]:
    """The places in the order in which they sow, of another call, which computes nothing where it may be traced.

    It may not be where the model looks at numbers, or changes a variable that is neither its own nor an argument.
    """
    from flax import nnx

    graph, state = nnx.split((model, args, kwargs))

    def order() -> list[str | None]:
        model, args, kwargs = nnx.merge(graph, state, copy=True)  # random streams stay as they are
        return _captured(model, method, args, kwargs, into_traces=True)[1]

    places: list[str | None] = []
    with jax.disable_jit():  # or JAX would keep each of the marked traces
        try:
            jax.eval_shape(lambda: places.extend(order()))
        except Exception:  # the model itself ran before: what fails is the trace
            places = order()
    return places


@contextlib.contextmanager
def _noting(note: Callable[[Any], None]) -> Generator[None]:
    """Tell of each module that sows weights, before it does.

    Every module sows by one method, those made for a trace included, so that this method is another one meanwhile.
    """
    from flax import nnx

    every: Any = nnx.Module
    with _alone:
        sow = every.sow

        @functools.wraps(sow)
        def noting(module: Any, variable_type: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if name == NAME:
                note(module)
            return sow(module, variable_type, name, *args, **kwargs)

        every.sow = noting
        try:
            yield
        finally:
            every.sow = sow


_alone = threading.RLock()  # or one thread would put back the method of another
_calls: list[type] = []  # kinds of the layers that were called since the last start


@functools.cache
def _sowing(kind: type) -> type:
    """A class of attention layers that sow their weights at every call; the same one each time for a kind."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _calls.append(kind)
        return kind.__call__(self, *args, **(kwargs | {"sow_weights": True}))

    return type(kind.__name__, (kind,), {"__call__": call})
