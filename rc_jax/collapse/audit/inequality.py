"""The result of every function of the audit."""

from typing import NamedTuple

from jaxtyping import Array, Float


class Inequality(NamedTuple):
    """Both sides of left ≤ right, and the distance between them.

    Attributes:
        left: the smaller side, if the inequality holds.
        right: the larger side.
        slack: entry by entry, not negative where it holds: right − left, or log right − log left (nats) where the
            function says so. It is computed without cancellation, so its sign can be trusted to a few roundings.
    """

    left: Float[Array, "..."]
    right: Float[Array, "..."]
    slack: Float[Array, "..."]
