"""A network of attention layers as a sum over paths: through which layers, and through which head of each.

With the attention matrices P frozen at what they are in the network, a layer is linear in its tokens,

    X ← X + Σ_h P_h X W_h + bias,   W_h = W_V,h W_O,h,

and the network is the sum of all ways to choose, layer by layer, one head or the skip connection. The length of a path
is the number of heads on it. Without skip connections every path from the input has the length of the network.

A bias starts paths of its own at its layer, and a length is the number of heads passed after it: the output bias starts
one of length 0, the value bias of head h passes that head, P_h (1 b_V,hᵀ) W_O,h, and starts one of length 1.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float, Integer

from rc_jax import attention
from rc_jax._numerics import arguments
from rc_jax.attention import AttentionParams, AttentionSpec, masks
from rc_jax.attention.layer import scale_of
from rc_jax.attention.parameters import project
from rc_jax.collapse.paths.terms import from_biases
from rc_jax.collapse.requirements import check_covered
from rc_jax.network import LayerParams, Layers, StackSpec
from rc_jax.network.specification import check_stack
from rc_jax.network.stack import check_every_mask, scan_kinds

SKIP = -1  # stands for the skip connection where a path names the head that it takes


@arguments.guard()
def path_counts(depth: int, heads: int, *, skip: bool = True) -> tuple[int, ...]:
    """How many paths of each length 0 … L there are: C(L, k) H^k with skip connections, H^L of length L without.

    Exact integers of any size; their sum is (1 + H)^L. `math.log` takes their logarithms. Paths that start at a bias
    are not counted.

    Args:
        depth: L.
        heads: H.
        skip: whether the layers have skip connections.

    Source: DCL21, section 3, on skip connections.

    Example:
        >>> path_counts(6, 2)
        (1, 12, 60, 160, 240, 192, 64)
        >>> sum(path_counts(6, 2)) == 3**6
        True
    """
    if skip:
        return tuple(math.comb(depth, length) * heads**length for length in range(depth + 1))
    return (0,) * depth + (heads**depth,)


@arguments.guard(scale=arguments.positive, mask=masks.check_mask)
def path_length_sums(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
) -> Float[Array, "length token feature"]:
    """The sum Y_k of all paths of each length k = 0 … L, which add up to the output of the network.

    No path is enumerated. With every P_h frozen at its value in the forward pass, layer by layer,

        Y_k ← Y_k + Σ_h P_h Y_{k−1} W_h,   starting from Y_0 = X and Y_k = 0 for k > 0,

    which costs L + 1 forward passes where there are (1 + H)^L paths. Later layers stand on the left of the products of
    P, and on the right of those of W. Without skip connections the first term is left out, and only Y_L is not zero.
    A bias starts a path at its layer: see the head of `rc_jax.collapse.paths.sums`.

    Any scores, weights and masks will do, for the sums are linear once P is frozen. This is the decomposition itself;
    running the network again with only the heads of one path, on hidden states of that path's own, is something else.

    Args:
        params: from `network.init` or `network.random_layers`.
        x: tokens.
        spec: the network, without MLP and LayerNorm.
        scale: α of every layer, as in `network.apply`; may be traced.
        mask: of every layer, as in `network.apply`.

    Raises:
        ValueError: a network with an MLP or LayerNorm.

    Source: the decomposition is DCL21's (section 2, and section 3 for skip connections); the recursion is this
        package's own result.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=8, heads=2), depth=6, skip=True)
        >>> params = network.init(jax.random.key(0), spec)
        >>> x = jax.random.normal(jax.random.key(1), (5, 8))
        >>> sums = path_length_sums(params, x, spec)
        >>> sums.shape, bool(jnp.allclose(sums.sum(axis=0), network.apply(params, x, spec), atol=1e-5))
        ((7, 5, 8), True)
    """
    check_decomposes(spec, mixed=True)
    check_stack(params, x, spec)
    check_every_mask(scale, mask, x, spec)
    return _path_length_sums(params, x, spec, scale, mask)


@functools.partial(jax.jit, static_argnames="spec")
def _path_length_sums(params: Layers, x: Array, spec: StackSpec, scale: ArrayLike | None, mask: Array | None) -> Array:
    def step(
        layer: AttentionSpec, state: tuple[Array, Array], weights: LayerParams
    ) -> tuple[tuple[Array, Array], None]:
        x, sums = state
        rows = attention.attention_weights(weights.attention, x, layer, scale=scale_of(layer, scale), mask=mask)
        through = jax.vmap(lambda tokens: _through_heads(rows, weights.attention, tokens, layer))
        longer = jnp.roll(through(sums), 1, axis=0)  # the last one is zero: no path is longer than the layers before
        out = _through_heads(rows, weights.attention, x, layer)
        if layer.bias:
            here, passed = from_biases(weights.attention, layer, jnp.sum(rows, axis=-1))
            longer = longer.at[0].add(here).at[1].add(passed)
            out = out + here + passed
        if spec.skip:
            out, longer = x + out, sums + longer
        return (out, longer), None

    sums = jnp.zeros((spec.depth + 1, *x.shape), x.dtype).at[0].set(x)
    return scan_kinds(lambda kind: functools.partial(step, kind.attention), (x, sums), params, spec)[0][1]


def _through_heads(rows: Array, params: AttentionParams, tokens: Array, spec: AttentionSpec) -> Array:
    """Σ_h P_h Y W_V,h W_O,h."""
    value = project(tokens, params.value, None, spec)
    mixed = jnp.einsum("hij,hjk->hik", rows, value, precision=spec.precision)
    return jnp.einsum("hik,hkd->id", mixed, params.output, precision=spec.precision)


@functools.partial(jax.jit, static_argnames=("depth", "heads", "samples"))
def draw_paths(key: Array, depth: int, heads: int, length: Array, samples: int) -> Array:
    """Uniformly drawn paths of one length: which layers, then a head for each of them."""

    def draw(key: Array) -> Array:
        order = jax.random.permutation(jax.random.fold_in(key, 0), depth)
        head = jax.random.randint(jax.random.fold_in(key, 1), (depth,), 0, heads)
        return jnp.where(order < length, head, SKIP)

    return jax.vmap(lambda index: draw(jax.random.fold_in(key, index)))(jnp.arange(samples))


def check_decomposes(spec: StackSpec, *, mixed: bool = False) -> None:
    """Raise unless the network is linear in its tokens once the attention matrices are frozen."""
    check_covered(
        spec,
        {
            "mlp": "it is not linear and a sum over paths does not exist",
            "norm": "its division depends on all paths together and no path has a size of its own",
            "output_gate": "it multiplies tokens by what depends on all paths together",
        },
        mixed=mixed,
    )


def check_paths(paths: Array | np.ndarray, spec: StackSpec) -> None:
    """Raise unless every row names, layer by layer, a head or the skip connection that the network has."""
    heads, least = spec.attention.heads, SKIP if spec.skip else 0
    if paths.shape[1] != spec.depth:
        raise ValueError(
            f"`paths` must have one column for each of {spec.depth} layers, got {arguments.describe(paths)}"
        )
    taken = arguments.on_host(paths)
    if taken is not None and taken.size and not (taken.min() >= least and taken.max() < heads):
        wrong = taken[(taken < least) | (taken >= heads)][0]
        skips = "or −1 for the skip connection" if spec.skip else "for the network has no skip connections"
        raise ValueError(f"`paths` must hold heads 0 … {heads - 1}, {skips}, got {wrong}")


def unless_unknown(heads: Integer[Array, "*path"], spec: StackSpec, dtype: DTypeLike) -> Float[Array, "*path"]:
    """1 where a traced path takes a head or the skip connection that the network has, and NaN elsewhere."""
    signed = jnp.issubdtype(heads.dtype, jnp.signedinteger)  # −1 is no unsigned number
    least = SKIP if spec.skip and signed else 0
    known = (heads >= least) & (heads < spec.attention.heads)
    return jnp.where(known, 1, jnp.nan).astype(dtype)
