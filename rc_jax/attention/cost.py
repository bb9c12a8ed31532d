"""Counts of multiplications, operations, sequential steps and the longest path of a signal through a stack."""

from typing import Literal, NamedTuple

from rc_jax._numerics import arguments

LayerKind = Literal["attention", "restricted attention", "recurrence", "convolution", "dilated convolution"]
"""The kinds of layers whose costs `layer_costs` counts."""


@arguments.guard()
def multiplications(*, tokens: int, d_model: int, heads: int = 1, projections: bool = False) -> int:
    """Scalar multiplications of one layer: 2 s² d for Q Kᵀ and P V; 4 s d² more with the four projections.

    The count does not depend on the number of heads, which share the width. A multiplication followed by an addition
    counts once.

    Args:
        tokens: s.
        d_model: d.
        heads: must divide d_model.
        projections: whether to count the query, key, value and output projections as well.

    Example:
        >>> multiplications(tokens=256, d_model=768, heads=12)
        100663296
    """
    if d_model % heads:
        raise ValueError(f"`heads` must divide d_model={d_model}, got heads={heads}")
    return 2 * tokens**2 * d_model + (4 * tokens * d_model**2 if projections else 0)


@arguments.guard()
def operations(*, tokens: int, d_model: int, heads: int = 1) -> int:
    """Floating-point operations of `attend` with softmax and no mask or bias, counted as XLA counts them.

    Twice the multiplications, projections included, for their additions; s d for the scale, which goes into the
    queries; and for each of a s rows of softmax s − 1 comparisons and one more with −∞, s subtractions, s − 1 additions
    and s divisions: a s (4 s − 1). Only the last grows with the number of heads a. The a s² exponentials are not in it;
    XLA counts them apart, as transcendentals.

    Args:
        tokens: s.
        d_model: d.
        heads: a; must divide d_model.

    Example:
        >>> operations(tokens=256, d_model=768, heads=12)
        1412625408
    """
    products = multiplications(tokens=tokens, d_model=d_model, heads=heads, projections=True)
    return 2 * products + tokens * d_model + heads * tokens * (4 * tokens - 1)


class LayerCosts(NamedTuple):
    """Costs of one layer: multiplications, steps that must follow each other, and the longest path of a signal."""

    multiplications: int
    sequential_steps: int
    longest_path: int


@arguments.guard(width=arguments.integer(3))
def layer_costs(kind: LayerKind, *, tokens: int, d_model: int, width: int = 3) -> LayerCosts:
    """Multiplications, sequential steps and longest path of a layer that maps n tokens of width d to n of width d.

    | kind | multiplications | steps | longest path |
    |---|---|---|---|
    | attention | 2 n² d | 1 | 1 |
    | restricted attention: a window of k tokens | 2 m d | 1 | ⌈2(n − 1)/(k − 1)⌉ |
    | recurrence: h_t = φ(x_t W + h_(t−1) U) | 2 n d² | n | n |
    | convolution: a kernel of k tokens | m d² | 1 | ⌈2(n − 1)/(k − 1)⌉ |
    | dilated convolution: looks back by 0 … k − 1 times k^l, layer l = 0, 1, … | m₀ d² | 1 | ⌈log_k n⌉ |

    with m = Σ_δ (n − |δ|), |δ| ≤ (k − 1)/2, the pairs of tokens at most that far apart, k n less the border's; m₀ is
    the same for offsets from 0 to k − 1, those of layer 0. Attention's 4 n d² for projections are left out, as in the
    source. A path is counted in layers, in a recurrence in steps, from a token to what depends on it; the longest is
    over all pairs that ever depend on each other: how many layers it takes until they do.

    Dilated convolutions look back only. Two-sided ones cannot connect every pair of tokens near the border, whatever
    the depth: each distance has one sum of offsets ±k^l, and near the border that path leaves the line.

    Args:
        kind: one of the five.
        tokens: n.
        d_model: d.
        width: k, odd; of kernels and windows, without effect on attention and recurrence.

    Source: Vaswani et al. 2017, Table 1, which has these up to constant factors.

    Example:
        >>> for kind in ("attention", "recurrence", "convolution", "dilated convolution"):
        ...     print(*layer_costs(kind, tokens=1000, d_model=512))
        1024000000 1 1
        524288000 1000 1000
        785907712 1 999
        785645568 1 7
    """
    if width % 2 == 0:
        raise ValueError(f"`width` must be odd, got {width}")
    # The pairs of tokens that a window joins, and the layers that carry a signal from one end to the other.
    radius = (width - 1) // 2
    pairs = sum(max(tokens - abs(offset), 0) for offset in range(-radius, radius + 1))
    layers = max(1, -(-(tokens - 1) // radius))
    if kind == "attention":
        return LayerCosts(multiplications(tokens=tokens, d_model=d_model), 1, 1)
    if kind == "restricted attention":
        return LayerCosts(2 * pairs * d_model, 1, layers)
    if kind == "recurrence":
        return LayerCosts(2 * tokens * d_model**2, tokens, tokens)
    if kind == "dilated convolution":
        pairs = sum(max(tokens - offset, 0) for offset in range(width))
        layers, reach = 1, width
        while reach < tokens:
            layers, reach = layers + 1, reach * width
    return LayerCosts(pairs * d_model**2, 1, layers)
