"""Arrays of JAX, NumPy and PyTorch, one a layer: checked, and handed to JAX without a copy where that is possible."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import working_dtype
from rc_jax._numerics.jax_names import Tracer, canonical_dtype

MASKS = ("none", "causal")  # masks that a word says
STACKED = (
    "The first axis of the one array counts {0} layers. If it counts {0} samples of one layer, as in what "
    "nn.MultiheadAttention returns, pass the array in a list."
)
EXPECTED = "an array of JAX, NumPy or PyTorch with floating-point numbers"


@dataclasses.dataclass(frozen=True)
class Layers:
    """One array a layer, all of one shape, dtype and device; each is converted when it is asked for.

    Attributes:
        name: of the argument, for errors.
        arrays: as they came, a list or an array whose first axis counts layers.
        shape: of each.
        dtype: the floating-point type in which the numbers came.
    """

    name: str
    arrays: Any
    shape: tuple[int, ...]
    dtype: Any

    @property
    def stacked(self) -> bool:
        """Whether the axes of one array also fit samples of a single layer."""
        return not isinstance(self.arrays, list | tuple) and self.arrays.ndim >= 4 and len(self.arrays) > 1

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, layer: int) -> jax.Array:
        """The layer's numbers in the working precision: float32, or float64 where the numbers have it and JAX may."""
        return to_jax(self.name, self.arrays[layer]).astype(canonical_dtype(working_dtype(self.dtype)))


def layers_of(name: str, value: Any, axes: tuple[str, ...], *, stacked: int) -> Layers:
    """The arrays of a list, or of the first axis of an array with at least `stacked` axes; else the one array.

    Args:
        name: of the argument, for errors.
        value: what the user gave.
        axes: names of the axes that an array of one layer has at least, the last ones.
        stacked: from how many axes on the first one counts layers.
    """
    wanted = f"(…, {', '.join(axes)})"
    if isinstance(value, list | tuple):
        arrays = value
        if not arrays:
            raise ValueError(f"`{name}` must have at least one layer, got an empty {type(value).__name__}")
    elif isinstance(value, Mapping):
        raise TypeError(
            f"`{name}` must be {EXPECTED}, or a list, got a {type(value).__name__}: pass its values in a list"
        )
    else:
        check_array(name, value)
        arrays = value if value.ndim >= stacked else [value]
        if not len(arrays):
            raise ValueError(f"`{name}` must have at least one layer, got {described(value)}")
    # All layers are alike: what differs is named with its place.
    first = None
    for index in range(len(arrays)):
        array = arrays[index]
        check_array(f"{name}[{index}]" if len(arrays) > 1 else name, array)
        about = (tuple(array.shape), dtype_of(array), place_of(array))
        if array.ndim < len(axes):
            raise ValueError(f"`{name}` must have axes {wanted} in each layer, got {described(array)}")
        if math.prod(about[0]) == 0:
            raise ValueError(f"`{name}` must have at least one entry in each layer, got {described(array)}")
        first = first or about
        for kind, mine, expected in zip(("shape", "dtype", "device"), about, first, strict=True):
            if mine != expected:
                raise ValueError(
                    f"`{name}` must have one {kind} in all layers, got {expected} in layer 0 and {mine} in layer "
                    f"{index}"
                )
    assert first is not None
    return Layers(name, arrays, first[0], first[1])


def check_array(name: str, value: Any) -> None:
    """Check that a value is an array of floating-point numbers that can be looked at."""
    if isinstance(value, Tracer):
        raise TypeError(
            f"`{name}` must not be traced, got {described(value)}: inside jit use the functions of "
            "rc_jax.diagnostics.measures"
        )
    if not isinstance(value, jax.Array | np.ndarray) and not is_torch(value):
        raise TypeError(f"`{name}` must be {EXPECTED}, got {described(value)}")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"`{name}` must be {EXPECTED}, got a masked array: pass its numbers, as of .filled(0)")
    if is_torch(value) and (layout := str(getattr(value, "layout", ""))) != "torch.strided":
        raise TypeError(f"`{name}` must be {EXPECTED}, got a tensor of layout {layout}: pass .to_dense()")
    if not jnp.issubdtype(dtype_of(value), jnp.floating) or dtype_of(value) == np.longdouble:  # which JAX lacks
        raise TypeError(f"`{name}` must be {EXPECTED}, got {described(value)}")


def is_torch(value: Any) -> bool:
    """Whether it is a tensor of PyTorch, told without importing PyTorch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "__dlpack__")


def dtype_of(value: Any) -> Any:
    """The dtype, in JAX's names for those of PyTorch, and in this machine's byte order."""
    if is_torch(value):
        return jnp.dtype(str(value.dtype).removeprefix("torch."))
    return value.dtype.newbyteorder("=") if isinstance(value, np.ndarray) else value.dtype


def place_of(value: Any) -> str:
    """Where the numbers lie."""
    if is_torch(value):
        return str(value.device)
    if isinstance(value, jax.Array):
        return ", ".join(sorted(map(str, value.devices())))
    return "cpu"


def described(value: Any) -> str:
    """In few words, with the shape of an array."""
    if is_torch(value):
        return f"torch.{dtype_of(value)}[{','.join(map(str, value.shape))}]"
    return arguments.describe(value)


def to_jax(name: str, value: Any) -> jax.Array:
    """An array of JAX with the same numbers: the same memory where its address suits XLA, else a copy.

    XLA reads memory in place that begins at a multiple of 64 bytes, as PyTorch's does; NumPy's often does not.
    """
    if isinstance(value, jax.Array):
        return value
    if is_torch(value):
        value = value.detach().contiguous()  # JAX takes no view of a part
        if dtype_of(value) != canonical_dtype(dtype_of(value)):  # float64 where JAX has 32 bits
            return jnp.asarray(value.cpu().numpy())
        try:
            return jax.dlpack.from_dlpack(value)
        except (RuntimeError, ValueError, BufferError, TypeError) as error:
            raise ValueError(
                f"`{name}` must lie on a device that JAX has, got {described(value)} on {value.device}: pass it "
                f"after .cpu() ({error})"
            ) from None
    return jnp.asarray(value.astype(dtype_of(value), copy=False))


LOW = -9984.0
"""What is added to a logit hides its key from here on: −10⁴, in older models usual, as bfloat16 holds it."""


def mask_of(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """What a mask lets be seen, as booleans of NumPy whose shape broadcasts to `shape`.

    A mask of floating-point numbers is one that is added to logits: a key is hidden where it holds −10⁴ or less.
    """
    if isinstance(value, Tracer) or not (isinstance(value, jax.Array | np.ndarray) or is_torch(value)):
        raise TypeError(f"`{name}` must be an array of booleans, got {described(value)}")
    mask = on_host(value)
    if mask.dtype != bool:
        mask = visible_under(name, mask, value)
    try:
        fits = np.broadcast_shapes(mask.shape, shape) == shape and mask.ndim >= 1
    except ValueError:
        fits = False
    if not fits:
        of_texts = len(shape) == 4 and mask.shape == (shape[0], shape[-1])
        way = ": keys of each text are mask[:, None, None, :]" if of_texts else ""
        raise ValueError(f"`{name}` must have a shape that broadcasts to {shape}, got {described(value)}{way}")
    return mask


def on_host(value: Any) -> np.ndarray:
    """The numbers as an array of NumPy, in float32 where NumPy lacks their type."""
    if is_torch(value):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.asarray(value)


def visible_under(name: str, mask: np.ndarray, given: Any) -> np.ndarray:
    """True where a mask that is added to logits hides nothing."""
    floating = jnp.issubdtype(mask.dtype, jnp.floating)
    mask = mask.astype(np.float32) if floating else mask
    if not floating or (mask.max(initial=-1) > 0 and mask.min(initial=0) > LOW):
        raise TypeError(
            f"`{name}` must be an array of booleans, True where something may be seen, or one that is added to logits, "
            f"-1e4 or less where a key is hidden, got {described(given)}: of 1 for seen and 0 for hidden pass "
            f"`{name} != 0`"
        )
    if np.isnan(mask).any():
        raise ValueError(f"`{name}` must have no NaN, got some in {described(given)}")
    return mask > LOW


AXES = ("layer", "sample", "head", "group", "query", "key")


def four_axes(layers: Layers, last: tuple[str, str]) -> None:
    """Refuse arrays with axes beside samples, heads and the `last` two: nothing tells what these are.

    Raises:
        ValueError: one array of all layers has five axes or more, or an array of a list has; readings are spelt out.
    """
    listed = isinstance(layers.arrays, list | tuple) or layers.arrays.ndim <= 4
    shape = layers.shape if listed else (len(layers), *layers.shape)
    if len(shape) <= 4:
        return
    a, b, c = shape[:3]
    end = ", ".join(f'"{each}"' for each in last)
    readings = [f'{a} samples with {b} groups of {c} heads, axes=("sample", "group", "head", {end})']
    if listed:
        readings.append(
            f"{a} samples of {b} heads with {c} chunks of a text, as of Reformer, which are set into (samples, heads, "
            f"{', '.join(last)}) first"
        )
    else:
        readings.append(f'{a} layers of {b} samples with {c} heads, axes=("layer", "sample", "head", {end})')
    may_be = "; or ".join(readings) if len(shape) == 5 else f'name them, as by axes=("layer", …, {end})'
    raise ValueError(
        f"`{layers.name}` must have axes (samples, heads, {', '.join(last)}) in each layer, got {shape}, which may be "
        f"several things: {may_be}"
    )


def arranged(name: str, value: Any, axes: Any, *, shared: bool = False) -> Any:
    """Arrays (sample, head, …) of each layer in a list, of arrays whose axes come in the order that `axes` names.

    Args:
        name: of the argument.
        value: an array, or a list of one for each layer.
        axes: words such as ("sample", "query", "head", "key"), which end with those of the last two axes of a layer.
            "offset" in place of "key" is the distance of a key from its query, from −w to w in 2w + 1 columns. Axes of
            samples, heads and groups may be missing; heads of a group, as of grouped queries, stand behind it.
        shared: whether arrays may lack the axis of heads in a group, as keys do that these share.
    """
    several = isinstance(value, list | tuple)
    words = tuple(axes) if isinstance(axes, list | tuple) else ()
    local = not shared and "offset" in words
    last = ("token", "width") if "width" in words else ("query", "offset" if local else "key")
    known = {*AXES[:4], *last}
    if not set(last) <= set(words) or not set(words) <= known or len(set(words)) != len(words):
        raise ValueError(
            f"`axes` must name each axis once, out of {', '.join((*AXES[:4], *last))}, the last two among them, got "
            f"{axes!r}"
        )
    if several and "layer" in words:
        raise ValueError(f"`axes` must not name layers where `{name}` is a list of them, got {axes!r}")
    first = value[0] if several and value else value
    if shared and {"group", "head"} <= set(words) and getattr(first, "ndim", 0) == len(words) - 1:
        words = tuple(each for each in words if each != "head")
    order = [words.index(each) for each in ("layer", "sample", "group", "head", *last) if each in words]
    arrays = []
    for array in value if several else [value]:
        check_array(name, array)
        if array.ndim != len(words):
            raise ValueError(f"`{name}` must have the axes {words}, got {described(array)}")
        moved = array.permute(order) if is_torch(array) else array.transpose(order)
        shape = list(moved.shape)
        if "layer" not in words:
            shape = [1, *shape]
        if "sample" not in words:
            shape = [shape[0], 1, *shape[1:]]
        shape = [*shape[:2], math.prod(shape[2:-2]), *shape[-2:]]
        arrays += list(_of_offsets(name, moved.reshape(shape)) if local else moved.reshape(shape))
    return arrays


def _of_offsets(name: str, array: Any) -> np.ndarray:
    """Weights (…, query, key) of those (…, query, offset), where column c stands for key query + c − width/2."""
    local = on_host(array)
    queries, width = local.shape[-2:]
    key = np.arange(queries)[:, None] + np.arange(width) - width // 2
    inside = (key >= 0) & (key < queries)
    if width % 2 == 0 or np.any(local[..., ~inside]):
        raise ValueError(
            f'`{name}` must have, along "offset", an odd number of columns, one for each distance of a key from its '
            f"query, with 0 beyond the ends of the text, got {described(array)}: columns of global tokens go first"
        )
    whole = np.zeros((*local.shape[:-1], queries), local.dtype)
    query, column = np.nonzero(inside)
    whole[..., query, key[inside]] = local[..., query, column]
    return whole


def tolerance(dtype: Any, keys: int) -> float:
    """How far the sum of a row of weights may be from one: rounding of the weights, and of the sums over n keys.

        4 eps(dtype) + 16 √n eps(float32) + n·(smallest number above 0)

    The last term counts the weights that became 0. Double precision is held to the limit of single precision, because
    weights that were computed in single precision are often stored so.
    """
    kind = jnp.finfo(dtype)
    single = float(jnp.finfo(jnp.float32).eps)
    return 4 * max(float(kind.eps), single) + 16 * math.sqrt(keys) * single + keys * float(kind.smallest_subnormal)
