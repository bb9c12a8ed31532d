"""What each query may see: decided here once for every layer, sample and head. Every measure reads this record.

It comes from what the caller states: a mask, numbers of texts, causality, windows. Where nothing is stated it comes
from exact zeros. A weight of exactly 0 has one of two causes: the key is hidden, or its logit lies so far below others
that its exponential underflows. One zero does not tell them apart; a pattern does. Zeros are taken for a mask where
they fill a whole region with a regular edge, hardly occur elsewhere, and stand beside weights of ordinary size.
Padding and the ends of texts are sought in each sample over all layers and heads; windows, prefixes and blocks in each
layer, then in its samples and in its heads. Whatever else is 0 counts as seen, and a note says so.
"""

from rc_jax.diagnostics.seen.notes import listed, looking, of_nothing, runs
from rc_jax.diagnostics.seen.other_queries import Place, empty_places
from rc_jax.diagnostics.seen.reading import keys_used, place, read, seen_by
from rc_jax.diagnostics.seen.stated import (
    PADDING,
    Seen,
    Texts,
    over_texts,
    rows_of_text,
    same_text,
    segments,
    tokens_of,
    traced,
    traced_causal,
)
from rc_jax.diagnostics.seen.support import farthest

__all__ = [
    "PADDING",
    "Place",
    "Seen",
    "Texts",
    "empty_places",
    "farthest",
    "keys_used",
    "listed",
    "looking",
    "of_nothing",
    "over_texts",
    "place",
    "read",
    "rows_of_text",
    "runs",
    "same_text",
    "seen_by",
    "segments",
    "tokens_of",
    "traced",
    "traced_causal",
]
