"""Results that have more than one part."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float


class Optimum(NamedTuple):
    """A maximiser, the maximum there, whether the search ended, and, of a simulated one, its standard error."""

    scale: Float[Array, "..."]
    value: Float[Array, "..."]
    converged: Bool[Array, "..."]
    standard_error: Float[Array, "..."] | None = None


class OutputGram(NamedTuple):
    """Squared length of an output token, inner product of two of them, and their cosine."""

    squared_length: Float[Array, "..."]
    inner_product: Float[Array, "..."]
    similarity: Float[Array, "..."]
