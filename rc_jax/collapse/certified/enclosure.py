"""Enclosures of the residuals of a network, by ball arithmetic whose precision is doubled until they are narrow."""

import importlib.util
import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from rc_jax._numerics import arguments
from rc_jax.attention import masks
from rc_jax.collapse.certified.errors import NotCertified, Undecided
from rc_jax.network import Layers, RandomLayers, StackSpec, hidden_states
from rc_jax.network.specification import check_stack, draw_layer
from rc_jax.network.stack import check_every_mask

_START = 128
_PAIRS = 512  # bits from which on the slower form of pairs is tried too


@arguments.guard(x=arguments.tokens, scale=arguments.positive, mask=masks.check_mask)
def log_residuals(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
    tolerance: float = 1e-12,
    most_bits: int = 32_768,
) -> tuple[Float[np.ndarray, " layer"], Float[np.ndarray, " layer"]]:
    """Two bounds of log ‖res(X^l)‖_F (nats) before the first layer and after each one: low ≤ exact value ≤ high.

    The network is that of `network.apply` in real arithmetic. Its parameters, tokens and constants, such as α and ε,
    are the numbers that their dtype stores. Only its operations do not round. Each of them is done on balls, which hold
    a number and a bound of its error (Johansson 2017, "Arb"). The precision doubles until every bound is narrow.

    Softmax attention on dot products without an MLP and norms is evaluated as a mean and a difference, where full
    attention maps the difference to its cube. A few hundred bits serve any depth then. Where saturated weights make
    groups of tokens, the differences of every two tokens are held instead. Every other network is evaluated as JAX
    traces it, one's own `attention.Kind` too. There a layer of full attention without skip connections takes
    three times the bits of the one before.

    It runs on the host, and it is slow. `collapse.log_residuals` is fast, and gives NaN where this function can help.

    Args:
        params: from `network.init` or `network.random_layers`.
        x: at least two tokens.
        spec: the network.
        scale: α of every layer, a number or one per head.
        mask: of every layer, True where row i may see column j.
        tolerance: high − low is at most this, or this times the logarithm.
        most_bits: the largest precision that is tried.

    Returns:
        low and high, depth + 1 numbers each; both −∞ where all tokens are provably equal.

    Raises:
        ImportError: `python-flint` is not installed.
        NotCertified: an operation has no rule, or the largest precision leaves a choice or a residual open.

    Example:
        >>> import jax
        >>> from rc_jax import attention, collapse, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=4, heads=2), depth=4)
        >>> params, x = network.init(jax.random.key(0), spec), jax.random.normal(jax.random.key(1), (3, 4))
        >>> low, high = collapse.certified.log_residuals(params, x, spec)
        >>> bool((low < high).all() and (high - low < 1e-9).all())
        True
    """
    if importlib.util.find_spec("flint") is None:
        raise ImportError("`certified.log_residuals` needs python-flint: pip install 'rc_jax[certified]'")
    import flint

    from rc_jax.collapse.certified import split

    check_stack(params, x, spec)
    check_every_mask(scale, mask, x, spec)
    _check_rows(mask, spec, len(x))
    if isinstance(params, RandomLayers):
        drawn = params
        params = jax.vmap(lambda key: draw_layer(drawn, key, spec))(drawn.keys)
    if split.covers(spec):

        def forms(bits: int) -> list[Iterable[Any]]:
            pairwise = (False, True) if bits >= _PAIRS else (False,)
            return [split.squares(params, x, spec, scale, mask, by_pairs) for by_pairs in pairwise]
    else:

        def run(params: Layers, x: Array, scale: ArrayLike | None, mask: Array | None) -> Array:
            return hidden_states(params, x, spec, scale=scale, mask=mask)

        traced = jax.make_jaxpr(run)(params, x, scale, mask)
        leaves = jax.tree.leaves((params, x, scale, mask))

        def forms(bits: int) -> list[Iterable[Any]]:
            del bits
            return [_squares_of(traced, leaves)]

    bits, reason = _START, ""
    while bits <= most_bits:
        with flint.ctx.workprec(bits):
            for squares in forms(bits):
                bounds = list[tuple[float, float]]()
                try:
                    for square in squares:
                        bounds.append(_bounds(split.log_of(square)))
                        if not _narrow(*bounds[-1], tolerance):
                            raise Undecided(f"the residual of layer {len(bounds) - 1} has too wide a ball")
                except Undecided as undecided:
                    reason = str(undecided)
                else:
                    low, high = np.array(bounds).T
                    return low, high
        bits *= 2
    raise NotCertified(f"{reason} at {bits // 2} bits; `most_bits` sets the largest precision")


def _check_rows(mask: Array | None, spec: StackSpec, n: int) -> None:
    """Every row sees something, in masks of any size too: they are on the host here."""
    for layer in (kind.attention for kind in spec.kinds if mask is not None):
        seen = masks.combine(n, causal_mask=layer.causal, radius=layer.window, extra=mask)
        if seen is not None and not np.asarray(seen).any(axis=1).all():
            raise ValueError("`mask` must let every token see at least one token, got an empty row")


def _squares_of(traced: Any, leaves: Iterable[Any]) -> Iterator[Any]:
    """‖R‖_F² of every state that a traced network returns."""
    from rc_jax.collapse.certified import program, split

    (tokens,) = program.evaluate(traced, [program.exactly(leaf) for leaf in leaves])
    for layer in tokens:
        yield split.square_of(split.centred(layer)[1])


def _bounds(log: Any) -> tuple[float, float]:
    """Floating-point numbers below and above a ball."""
    if log.is_exact() and not log.is_finite():
        return float(log), float(log)
    if not log.is_finite():
        return -math.inf, math.inf
    return math.nextafter(float(log.lower()), -math.inf), math.nextafter(float(log.upper()), math.inf)


def _narrow(low: float, high: float, tolerance: float) -> bool:
    if low == high == -math.inf:
        return True
    return high - low <= max(tolerance, 4e-16) * max(1.0, abs(low)) and math.isfinite(high)
