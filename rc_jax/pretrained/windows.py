"""A long text tokenised into windows of one length, each with the special tokens that the model expects."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from rc_jax._numerics import arguments
from rc_jax.pretrained.checkpoint import Checkpoint, encoding

LONGEST = 128  # tokens of a window where nothing else is asked for


class Windows(NamedTuple):
    """The result of `cut`.

    Attributes:
        ids: token ids, one row per window, special tokens included; all rows are equally long and none is padded.
        text_tokens: how many tokens the text has, without special ones.
        special: how many tokens of every window are special.
        overlap: how many tokens of the text stand in two windows: the last one is moved back until it is full.
    """

    ids: Int[np.ndarray, "window token"]
    text_tokens: int
    special: int
    overlap: int


@arguments.guard(tokens=arguments.integer(2))
def cut(checkpoint: Checkpoint, text: str, *, tokens: int | None = None, limit: int | None = None) -> Windows:
    """Tokenise a text of any length into windows that the model can read.

    The text is tokenised once, then divided: a window may start inside a word. Each window gets the special tokens that
    `Checkpoint.encode` puts around a text, and its positions start anew. A text that fits gives one window; of a
    longer one all windows are full, for the last is moved back and overlaps the one before. Nothing is padded.

    Args:
        checkpoint: from `load`.
        text: not empty.
        tokens: the longest window, special tokens included; 128 by default, and never more than the model takes.
        limit: the most windows, from the start of the text; all by default.

    Raises:
        ValueError: `text` gives fewer than two tokens with the special ones, or one that the checkpoint's table has no
            row for, or `tokens` leaves no place for the text.
        FileNotFoundError, ValueError, ImportError: as `Checkpoint.tokenizer`.

    Example:
        >>> from rc_jax import pretrained
        >>> checkpoint = pretrained.load(pretrained.packaged_checkpoint())
        >>> windows = pretrained.cut(checkpoint, "Attention without skips loses rank with depth.", tokens=6)
        >>> windows.ids.shape, windows.text_tokens, windows.overlap
        ((3, 6), 9, 3)
    """
    before, after = checkpoint.frame
    special = len(before) + len(after)
    longest = min(LONGEST if tokens is None else tokens, checkpoint.most_tokens)
    inner = longest - special
    if inner < 1:
        raise ValueError(f"`tokens` must be at least {special + 1}: {special} are the model's own, got {longest}")
    encoded = encoding(checkpoint.tokenizer, checkpoint.tokenizer_file, text, special=False)
    ids = np.asarray(encoded.ids, np.int32)
    if len(ids) + special < 2 or not len(ids):
        raise ValueError(f"`text` must give at least two tokens, with the model's own, got {len(ids)} + {special}")
    width = min(inner, len(ids))
    # All windows are equally wide; the last one is moved back until it is full.
    starts = np.minimum(np.arange(0, len(ids), width), len(ids) - width)
    overlap = len(starts) * width - len(ids)
    if limit is not None and limit < len(starts):
        starts, overlap = starts[:limit], 0
    inside = ids[starts[:, None] + np.arange(width)[None]]
    frame = [np.broadcast_to(np.asarray(part, np.int32), (len(starts), len(part))) for part in (before, after)]
    windows = np.concatenate([frame[0], inside, frame[1]], axis=1)
    # A token may have been added to the tokenizer and not to the model.
    if windows.max() >= (rows := checkpoint.embeddings.word.shape[0]):
        raise ValueError(
            f"'{checkpoint.tokenizer_file}' must give ids below {rows}, the rows of the checkpoint's table, "
            f"got {windows.max()}"
        )
    return Windows(windows, len(ids), special, overlap)
