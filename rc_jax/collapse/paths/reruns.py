"""The network run again with one path in it: what DCL21's experiment on trained networks measures.

There every layer attends to *that path's own* hidden states and normalises them, so its matrices P are others than the
network's, and what the paths return does not add up to the network's output. The decomposition itself, with P frozen at
what they are in the network, is in `rc_jax.collapse.paths.sums`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Integer

from rc_jax import attention
from rc_jax._numerics import arguments
from rc_jax.attention import AttentionParams, masks
from rc_jax.attention.layer import check_scale_and_mask
from rc_jax.attention.parameters import standardised
from rc_jax.collapse.paths.sums import SKIP, check_paths, unless_unknown
from rc_jax.collapse.requirements import NotCovered, check_covered
from rc_jax.network import LayerParams, Layers, StackSpec, scan_layers
from rc_jax.network.specification import check_stack

_BATCH = 64


@arguments.guard(scale=arguments.positive, mask=masks.check_mask)
def path_reruns(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    paths: Integer[Array | np.ndarray, "path layer"],
    *,
    normalise: bool = True,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
) -> Float[Array, "path token feature"]:
    """What the network returns when it is run again with only one path in it, on hidden states of its own.

    Layer by layer, from Z = X: nothing where the path takes the skip connection, and where it takes head h

        Z ← LN(P_h(Z) Z W_V,h W_O,h + biases),   LN(z) = (z − mean)/√(variance + ε) token by token

    with P_h computed from Z. This is not the path's term in the network, which is `path_log_sizes`, and the results of
    all paths do not add up to `network.apply`. Plain arithmetic: once the tokens of a path agree to rounding, what is
    left of their differences is rounding, which LN does not make smaller.

    Args:
        params: from `network.init` or `network.random_layers`.
        x: tokens.
        spec: attention of any kind, without MLP and LayerNorm of its own; `norm_epsilon` is ε.
        paths: one row per path; for each layer, first to last, a head 0 … H − 1, or −1 for the skip connection. What a
            traced path that the network does not have returns is NaN.
        normalise: whether LN follows every head, as in the experiment; without it the sizes of weights stay in.
        scale: α of every layer, as in `network.apply`; may be traced.
        mask: of every layer, as in `network.apply`.

    Raises:
        ValueError: a network with an MLP or LayerNorm, or `paths` that it does not have.

    Source: DCL21, section 4, on path effectiveness.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=4), depth=3, skip=True)
        >>> params = network.init(jax.random.key(0), spec)
        >>> x = jax.random.normal(jax.random.key(1), (8, 16))
        >>> alone = path_reruns(params, x, spec, jnp.array([[-1, -1, -1], [3, -1, 0]]))
        >>> bool((alone[0] == x).all()), bool(jnp.abs(alone[1].mean(axis=1)).max() < 1e-5)
        (True, True)
    """
    check_covered(spec, dict.fromkeys(("mlp", "norm"), "a path passes heads only"))
    if spec.attention.qk_norm == "rms_joint":
        raise NotCovered("`spec` must have a qk_norm of one head: a path passes one head only, got 'rms_joint'")
    check_stack(params, x, spec)
    check_scale_and_mask(scale, mask, x, spec.attention)
    check_paths(paths, spec)
    return _path_reruns(params, x, spec, jnp.asarray(paths), normalise, scale, mask)


@functools.partial(jax.jit, static_argnames=("spec", "normalise"))
def _path_reruns(
    params: Layers,
    x: Array,
    spec: StackSpec,
    paths: Array,
    normalise: bool,
    scale: ArrayLike | None,
    mask: Array | None,
) -> Array:
    layer = spec.attention
    one = dataclasses.replace(layer, heads=1, d_head=layer.head_width)
    scales = None if scale is None else jnp.broadcast_to(jnp.asarray(scale, x.dtype), (layer.heads,))

    def through(weights: AttentionParams, path: tuple[Array, Array]) -> Array:
        tokens, head = path
        chosen = jnp.maximum(head, 0)
        # Every leaf has one row per head but the output's bias, which the layer has once.
        alone: AttentionParams = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, chosen, 1), weights._replace(output_bias=None)
        )
        alone = alone._replace(output_bias=weights.output_bias)
        alpha = None if scales is None else scales[chosen]
        out = attention.attend(alone, tokens, one, scale=alpha, mask=mask)
        if normalise:
            out = standardised(out, spec.norm_epsilon, centred=True)
        return jnp.where(head == SKIP, tokens, out) * unless_unknown(head, spec, x.dtype)

    def step(carry: tuple[Array, Array], weights: LayerParams) -> tuple[tuple[Array, Array], None]:
        index, states = carry
        move = functools.partial(through, weights.attention)
        return (index + 1, jax.lax.map(move, (states, paths[:, index]), batch_size=_BATCH)), None

    states = jnp.broadcast_to(x, (paths.shape[0], *x.shape))
    return scan_layers(step, (jnp.asarray(0), states), params, spec)[0][1]
