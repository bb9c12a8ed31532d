"""A kind of attention weights as one record: the function from scores to weights, and what is true of it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from rc_jax._numerics import arguments

Rows = Float[Array, "head token column"]
Seen = Bool[Array, "#head token column"] | Bool[np.ndarray, "#head token column"]
Parts = Mapping[str, Array]


class Inputs(NamedTuple):
    """What a kind with scores of its own makes them of.

    Attributes:
        tokens: x, as they enter the layer.
        query: queries of every head.
        key: keys of every head.
        precision: of matrix products.
    """

    tokens: Float[Array, "token feature"]
    query: Float[Array, "head token width"]
    key: Float[Array, "head column width"]
    precision: str


def _no_shapes(spec: Any) -> dict[str, tuple[int, ...]]:
    return {}


def _nothing(spec: Any, dtype: DTypeLike) -> dict[str, Array]:
    return {}


def _no_reason(spec: Any) -> tuple[str, str] | None:
    return None


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of attention weights, for `AttentionSpec(weights=…)`: built in, or anyone's own.

    A record is static: it is hashed by value and is a part of the layer's specification. Its functions hold no arrays.

    Attributes:
        name: for tables and messages.
        weights: `weights(scores, seen, parts)` gives the weights (head, token, column). `scores` are the scaled scores,
            `seen` is True where token i sees column j and has their shape (or one head), and `parts` holds the arrays
            that `shapes` names, each without the layers' axis. Weights of what is not seen must be 0. Fields of the
            specification that `options` names follow as keywords.
        row_sum: what a row of weights sums to. `"one"`; `"fixed"`: one number for every row that sees the same columns;
            `"any"`: it depends on the scores.
        shift_invariant: a constant added to all scores of a row leaves its weights the same; with several score
            matrices, one of its own for each.
        increasing: a weight that is not 0 grows with its score, so that a row may be cut to its `top_k` largest.
        sparse: the weight of a token that is seen may be exactly 0. In other kinds a weight of 0 has underflowed.
        reads: `"scores"`: products, cosines or additive scores of queries and keys, with every option of these.
            `"features"` and `"distance"`: scores of its own, which `own_scores` makes.
        own_scores: `own_scores(inputs, parts)` gives scores (head, token, column), where the kind does not read
            `"scores"`.
        maps: how many score matrices a head has, each made of an equal share of its queries and keys. `scores` have
            `maps` times as many heads then: all heads of the first share, then those of the second. No `qk_norm` goes
            with several, and cancellation-free arithmetic asks for `shift_invariant` then.
        shapes: `shapes(spec)` names the kind's own parameters and gives their shapes.
        start: `start(spec, dtype)` gives those of them that are not drawn at random. The rest are normal, of
            deviation gain/√d_model, or `bias_std` where the name ends in `bias` or is `sink`.
        options: names of the fields of the specification that the kind reads.
        empty_rows: `weights` itself gives zeros to a row that sees nothing. Elsewhere such a row is shown its own
            column, and its weights are set to 0 afterwards: right unless other rows' weights depend on it.
        refuses: `refuses(spec)` gives the name of an argument and what it must be, where the specification has no
            meaning for this kind, and None elsewhere.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import attention
        >>> def squares(scores, seen, parts):
        ...     raised = jnp.where(seen, 1 + jnp.square(scores), 0)
        ...     return raised / raised.sum(-1, keepdims=True)
        >>> kind = attention.Kind("squares", squares, row_sum="one")
        >>> attention.AttentionSpec(d_model=8, weights=kind).kind.name
        'squares'
    """

    name: str
    weights: Callable[..., Array]
    row_sum: Literal["one", "fixed", "any"] = "any"
    shift_invariant: bool = False
    increasing: bool = False
    sparse: bool = False
    reads: Literal["scores", "features", "distance"] = "scores"
    own_scores: Callable[..., Array] | None = None
    maps: int = 1
    shapes: Callable[[Any], Mapping[str, tuple[int, ...]]] = _no_shapes
    start: Callable[[Any, DTypeLike], dict[str, Array]] = _nothing
    options: tuple[str, ...] = ()
    empty_rows: bool = False
    refuses: Callable[[Any], tuple[str, str] | None] = _no_reason

    def __post_init__(self) -> None:
        arguments.check_fields(self, options=_names)
        if (self.own_scores is None) != (self.reads == "scores"):
            raise ValueError(f"`own_scores` must be given when reads={self.reads!r} is not 'scores', and only then")
        try:
            hash(self)
        except TypeError as error:
            raise TypeError(
                f"`weights` of kind {self.name!r} must be hashable, so that it can be static: {error}"
            ) from None

    def __call__(
        self,
        scores: Float[Array, "map token column"],
        seen: Bool[Array, "#map token column"] | Bool[np.ndarray, "#map token column"] | None = None,
        parts: Parts | None = None,
        **options: Any,
    ) -> Rows:
        """The weights of rows of scores; all columns are seen where `seen` is not given. A row that sees none is 0.

        Args:
            scores: (head, token, column), for all score matrices of a head (`maps`).
            seen: True where a row sees a column.
            parts: the kind's own arrays, by name.
            options: the fields of a specification that `options` names; the kind's defaults elsewhere.
        """
        parts = {} if parts is None else parts
        if seen is None:
            return self.weights(scores, everything(scores.shape), parts, **options)
        some = jnp.any(seen, axis=-1, keepdims=True)
        shown = jnp.asarray(seen) if self.empty_rows else with_own_column(jnp.asarray(seen), some)
        weights = self.weights(scores, shown, parts, **options)
        if len(some) > len(weights):  # one for each of a head's maps
            some = jnp.any(some.reshape(-1, len(weights), *some.shape[1:]), axis=0)
        return jnp.where(some, weights, 0)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        """The name, and what is not as it is by default."""
        named = [field for field in dataclasses.fields(self) if field.name not in ("name", "weights")]
        changed = [field.name for field in named if getattr(self, field.name) != field.default]
        return f"Kind({', '.join([repr(self.name), *(f'{name}={_brief(getattr(self, name))}' for name in changed)])})"


def _brief(value: object) -> str:
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(value)


_names = arguments.must(
    "a tuple of names",
    right=lambda value: isinstance(value, tuple) and all(isinstance(entry, str) for entry in value),
)


def of_each_head(*names: str) -> Callable[[Any], Mapping[str, tuple[int, ...]]]:
    """`shapes` of a kind whose own parameters are one number for each head."""
    return lambda spec: {name: (spec.heads,) for name in names}


def everything(shape: tuple[int, ...]) -> Seen:
    """True for every column of rows of scores of this shape; it takes no memory."""
    return np.broadcast_to(np.True_, (1, *shape[1:]))


def with_own_column(
    seen: Bool[Array, "*map token column"], some: Bool[Array, "*map token 1"]
) -> Bool[Array, "*map token column"]:
    """What rows see, and rows that see nothing their own column; `some` is True in the others."""
    tokens, columns = seen.shape[-2:]
    own = np.arange(tokens)[:, None] % columns == np.arange(columns)
    return seen | (~some & own.reshape((1,) * (seen.ndim - 2) + own.shape))


def shown(scores: Array, seen: Seen, hidden: int | float | Array) -> Array:
    """Scores, and `hidden` where a column is not seen; no operation where all are."""
    if isinstance(seen, np.ndarray) and seen.all():
        return scores
    return jnp.where(seen, scores, hidden)


def over_sum(weights: Rows) -> Rows:
    """Rows divided by their sums; a row that sums to 0 is left alone."""
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


def to_unit(scores: Rows, seen: Seen) -> Rows:
    """Rows divided by their largest magnitude, so that powers neither overflow nor underflow; hidden entries 0."""
    scores = shown(scores, seen, 0)
    largest = jnp.max(jnp.abs(scores), axis=-1, keepdims=True)
    return scores / jax.lax.stop_gradient(jnp.where(largest > 0, largest, 1))
