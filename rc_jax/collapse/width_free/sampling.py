"""The collapse of random attention at a cost that does not depend on the width of the tokens.

A layer with Gaussian weights sees its tokens through their inner products alone. If all rows of X are rotated by one
rotation, and the weights by its inverse, the weights are as likely as before. So n tokens may be written in n
coordinates, whatever their width d, and one layer goes from coordinates to coordinates:

    queries, keys, values   coordinates times normals, d_head columns to a head
    heads                   as in `rc_jax.collapse.exact.attention`: a mean and a scaled difference, H·d_head wide
    A = T Q                 the heads' mean and differences: a lower triangular T times orthonormal rows Q
    Q W_O                   Gaussian, n × d: in a basis of its own rows a lower triangular B, normals under √χ²
    T B                     the new coordinates

With skip connections the output is added to its input, so Q W_O is split into its part in the old coordinates, which is
normals, and the rest. The rest is Gaussian in d − n new directions and has a lower triangular form there.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Key

from rc_jax._numerics import arguments
from rc_jax.attention import masks
from rc_jax.attention.layer import check_scale_and_mask
from rc_jax.collapse.exact import state
from rc_jax.collapse.exact.scaled import Scaled
from rc_jax.collapse.exact.state import MeanResidual
from rc_jax.collapse.requirements import BILINEAR, check_covered
from rc_jax.collapse.width_free.gaussian_matrices import compress, extend
from rc_jax.collapse.width_free.layers import log_norms
from rc_jax.network import StackSpec


def _check_width(name: str, value: ArrayLike) -> None:
    """A positive number; infinity is one."""
    numbers = arguments.at_hand(value)
    if numbers is not None and not (numbers.ndim == 0 and numbers.dtype.kind in "iuf" and float(numbers) > 0):
        raise ValueError(f"`{name}` must be a positive number or infinity, got {arguments.describe(value)}")


@arguments.guard(
    x=arguments.tokens,
    gain=arguments.scalar(arguments.positive),
    scale=arguments.positive,
    mask=masks.check_mask,
    width=_check_width,
)
def sample_log_residuals(
    key: Key[Array, ""],
    x: Float[Array, "token coordinate"],
    spec: StackSpec,
    *,
    gain: ArrayLike = 1.0,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
    width: ArrayLike | None = None,
) -> Float[Array, " layer"]:
    """One draw of log ‖res(X^l)‖_F (nats) before the first layer and after each, over Gaussian weights, at any width.

    Equal in law to `log_residuals(network.random_layers(key, spec, gain=gain), x, spec)`, with time and memory that do
    not grow with d_model: n tokens span n dimensions, and Gaussian weights do not prefer a basis (this package's own
    result; the proof is in docs/width_free.md). A draw differs from the one that `random_layers` makes of the same key.
    It has the arithmetic of `log_residuals`, but not its moved computations: where softmax is saturated (a `gain` of 2
    and more, or many layers with skip connections) a draw may hang on roundings of the tokens. Its law does not, in
    either precision, so no draw is NaN for it (measured in docs/width_free.md).
    Its gradient in `x`, `gain` and `scale` has the mean of the gradient of `log_residuals`. Cholesky factors of
    collapsed tokens are regularised: in float32 the law is right to 10⁻⁵ nats after a layer, in float64 to 10⁻¹⁴.

    Args:
        key: a typed key; another key, another draw.
        x: at least two tokens. Only their inner products matter, so they may also be given by their coordinates in any
            orthonormal basis of their span: fewer than d_model columns stand for as many as are missing, all zero.
        spec: pure attention, with or without skip connections; dot-product scores and softmax weights. Biases are
            zero, as `random_layers` draws them by default.
        gain: factor on the standard deviation of every matrix; may be traced.
        scale: α of every layer, a number or one per head; 1/√d_head by default; may be traced.
        mask: of every layer, True where row i may see column j; traced ones as in `log_residuals`.
        width: d in place of d_model, for sweeps in one compiled program and for the limit `jnp.inf`; may be traced. The
            tokens' inner products are those of `x` times d/d_model, and log √(d/d_model) is taken off the results.

    Returns:
        depth + 1 numbers; −inf where all tokens are equal.

    Raises:
        ValueError: `x` with more columns than d_model or `width`; a `width` below the number of tokens; an MLP or
            LayerNorm, which act on features and so prefer a basis; other scores or weights than dot-product softmax.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> layer = attention.AttentionSpec(d_model=12288, heads=96)
        >>> x = jax.random.normal(jax.random.key(1), (8, 12288))
        >>> stack = network.StackSpec(attention=layer, depth=12)
        >>> logs = sample_log_residuals(jax.random.key(0), x, stack)  # 7.2 billion weights, none of them drawn
        >>> falls = jax.numpy.diff(logs)
        >>> round(float(falls[-1] / falls[-2]), 2)
        3.0
    """
    basis = {
        "mlp": "an activation acts feature by feature and prefers a basis",
        "norm": "a norm has a gain for each feature, and LayerNorm subtracts their mean: they prefer a basis",
    }
    check_covered(spec, basis | BILINEAR | {"rank": "no E is drawn for it"})
    n, columns = x.shape
    if columns > spec.attention.d_model:
        raise ValueError(f"`x` must have at most d_model={spec.attention.d_model} columns, got {arguments.describe(x)}")
    least = max(n, columns)
    if width is not None and (number := arguments.at_hand(width)) is not None and not float(number) >= least:
        raise ValueError(f"`width` must be at least {least}, the larger side of `x`, got {arguments.describe(width)}")
    check_scale_and_mask(scale, mask, x, spec.attention)

    layer = dataclasses.replace(spec.attention, bias=False)  # biases are zero, as drawn by default
    # With no more features than tokens there is nothing to save: the coordinates are the features.
    in_features = width is None and layer.d_model <= n
    start = _coordinates(x, jnp.asarray(layer.d_model, x.dtype), layer.d_model if in_features else None)
    size = jnp.asarray(layer.d_model if width is None else width, start.mean.dtype)
    if not in_features:  # from here on no shape depends on the width, and all widths are one compiled program
        layer = dataclasses.replace(layer, d_model=n, d_head=layer.head_width)
    log_unit = math.log(spec.attention.d_model) / 2
    logs = log_norms(
        key, start, dataclasses.replace(spec, attention=layer), in_features, gain, scale, mask, size, log_unit
    )
    return logs.astype(x.dtype)


@functools.partial(jax.jit, static_argnames="features")
def _coordinates(x: Array, d_model: Array, features: int | None) -> MeanResidual:
    """The tokens over √d, with zeros up to `features` columns; where that is None, in as many coordinates as tokens.

    W_Q and W_K with entries of variance 1, in place of 1/d, then make queries and keys that have a limit in d.
    """
    # There are no factorisations in a narrower type.
    dtype = x.dtype if jnp.finfo(x.dtype).bits >= 32 else jnp.dtype("float32")
    start = state.decompose(x.astype(dtype))
    start = compress(start) if features is None else extend(start, features - x.shape[1])
    unit = d_model.astype(dtype)
    difference = Scaled(start.direction, start.log_size - jnp.log(unit) / 2)
    return MeanResidual(start.mean / jnp.sqrt(unit), difference)
