"""One clear error where a function of a kind is not given the kind's own arrays."""

import contextlib
from collections.abc import Generator, Mapping

from jaxtyping import Array

from rc_jax.attention.kinds import Kind
from rc_jax.attention.specification import AttentionSpec


@contextlib.contextmanager
def named(kind: Kind, parts: Mapping[str, Array] | None) -> Generator[None]:
    """Say which of the arrays that `kind.shapes` names are not in `parts`, where `weights` looks for one in vain.

    Example:
        >>> from rc_jax.attention import KINDS
        >>> with named(KINDS["softmax"], None):
        ...     pass
    """
    try:
        yield
    except KeyError as error:
        wanted, given = list(kind.shapes(AttentionSpec(d_model=8))), sorted(parts or {})
        if not set(error.args) & (set(wanted) - set(given)):
            raise
        raise ValueError(
            f"`parts` must hold {', '.join(map(repr, wanted))} of kind {kind.name!r}, got "
            f"{', '.join(map(repr, given)) or 'none'}: arrays for one head, such as "
            "`attention.init(key, attention.AttentionSpec(d_model=8, weights=kind)).parts`"
        ) from None
