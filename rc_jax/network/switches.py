"""Skip connections, MLP and norms switched by numbers that may be traced: one program for all these networks."""

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from rc_jax.network.parameters import LayerParams, NormParams
from rc_jax.network.specification import StackSpec
from rc_jax.network.stack import Arithmetic, plain_arithmetic, scan_layers

Tokens = TypeVar("Tokens")
OFF = {"skip": False, "mlp": False, "pre": False, "post": False}


def switched_layer(
    params: LayerParams, x: Tokens, arithmetic: Arithmetic[Tokens], setting: Mapping[str, ArrayLike]
) -> Tokens:
    """One layer with the parts that `setting` switches on: booleans `skip`, `mlp`, `pre` and `post`.

    A part that is off is computed and not used; without a skip connection nothing is added.
    """
    on = {**OFF, **setting}

    def sublayer(branch: Any, x: Tokens, norm: NormParams | None) -> Tokens:
        read = x if norm is None else _either(on["pre"], arithmetic.norm(norm, x), x)
        out = branch(read)
        out = _either(on["skip"], arithmetic.add(x, out), out)
        return out if norm is None else _either(on["post"], arithmetic.norm(norm, out), out)

    attended = sublayer(lambda y: arithmetic.attend(params.attention, y), x, params.attention_norm)
    if (weights := params.mlp) is None:
        return attended
    return _either(on["mlp"], sublayer(lambda y: arithmetic.mlp(weights, y), attended, params.mlp_norm), attended)


def switched_apply(params: LayerParams, x: Array, stack: StackSpec, setting: Mapping[str, ArrayLike]) -> Array:
    """`network.apply` with the switches of `setting` in place of those of `stack`, whose layers are of one kind.

    Raises:
        ValueError: branches side by side, with norms of their own, or layers of two kinds.
    """
    for name, needed in (("parallel", (False,)), ("norm", (None, "pre", "post")), ("local", (None,))):
        if (value := getattr(stack, name)) not in needed:
            raise ValueError(f"`stack` must have {name} among {needed} to be switched by numbers, got {value!r}")
    arithmetic = plain_arithmetic(stack, None, None)
    return scan_layers(lambda x, layer: (switched_layer(layer, x, arithmetic, setting), None), x, params, stack)[0]


def _either(condition: ArrayLike, this: Tokens, other: Tokens) -> Tokens:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), this, other)
