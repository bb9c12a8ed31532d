"""What a layer costs, counted."""

from rc_jax import _checks


@_checks.guard(tokens=_checks.integer(1), d_model=_checks.integer(1), heads=_checks.integer(1))
def multiplications(*, tokens: int, d_model: int, heads: int = 1, projections: bool = False) -> int:
    """Scalar multiplications of one layer: 2 s² d for Q Kᵀ and P V; 4 s d² more with the four projections.

    The count does not depend on the number of heads, which share the width. A multiplication followed by an addition
    counts once.

    Args:
        tokens: s.
        d_model: d.
        heads: must divide d_model.
        projections: whether to count the query, key, value and output projections as well.

    Raises:
        ValueError: a size below 1, or `heads` that does not divide `d_model`.
        TypeError: a size that is not an integer.

    Example:
        >>> multiplications(tokens=256, d_model=768, heads=12)
        100663296
    """
    if d_model % heads:
        raise ValueError(f"`heads` must divide d_model={d_model}, got heads={heads}")
    return 2 * tokens**2 * d_model + (4 * tokens * d_model**2 if projections else 0)
