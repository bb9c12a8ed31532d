"""The order in which a layer of any kind of attention weights maps the difference between tokens."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rc_jax import network
from rc_jax._numerics import arguments
from rc_jax.attention import AttentionSpec, Kind
from rc_jax.collapse.exact.trajectory import log_residuals

_NEAR, _FAR = math.exp(-4), math.exp(-6)  # sizes of the two differences
_KIND = arguments.instance(Kind)


@arguments.guard(kind=_KIND)
def predicted_order(kind: Kind) -> int:
    """The power k with which a layer without mask and skip maps small differences, e^ℓ to a multiple of e^{kℓ}.

    It is 3 where rows have equal sums, or a constant in a row changes nothing, and 1 elsewhere. With equal sums the
    mean of the values drops out; near equal scores equal sums also make a constant in a row change nothing to first
    order, and the other way round. Scores differ along a row by e^ℓ and in the rest by e^{2ℓ}. The kind is taken to
    treat all tokens alike.

    Raises:
        TypeError: `kind` is not a `Kind`.

    Source: this package's own; 3 for softmax is Dong et al. 2021.

    Example:
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.collapse.kinds import predicted_order
        >>> [predicted_order(KINDS[name]) for name in ("softmax", "l2", "sigmoid")]
        [3, 3, 1]
    """
    return 3 if kind.shift_invariant or kind.row_sum != "any" else 1


@arguments.guard(kind=_KIND, seed=arguments.integer(0))
def layer_order(kind: Kind, seed: int = 0) -> float:
    """The same power, measured: the slope of log ‖res‖ after one random layer against log ‖res‖ before it.

    Exact arithmetic at two small differences around one random mean. Where rows happen to have equal sums around that
    mean, such as those of `softpick` at positive scores, it is 3 although the record promises 1.

    Args:
        kind: that reads scores.
        seed: of the layer and the tokens.

    Returns:
        The slope; NaN where a residual is not known.

    Raises:
        TypeError: `kind` is not a `Kind`.
        NotCovered: the kind does not read scores.

    Source: this package's own.

    Example:
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.collapse.kinds import layer_order
        >>> print(f"{layer_order(KINDS['softmax']):.2f}")
        3.00
    """
    stack = network.StackSpec(attention=AttentionSpec(d_model=8, heads=1, weights=kind), depth=1)
    params = network.init(jax.random.key(seed), stack)
    rng = np.random.default_rng(seed)
    mean, difference = rng.normal(size=(1, 8)), rng.normal(size=(5, 8))
    logs = [
        np.asarray(log_residuals(params, jnp.asarray(mean + size * difference, params.attention.query.dtype), stack))
        for size in (_NEAR, _FAR)
    ]
    (first, near), (second, far) = logs
    return float((near - far) / (first - second))
