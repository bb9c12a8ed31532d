"""What a reader of the record must know, in sentences."""

from collections.abc import Iterator, Sequence

import numpy as np

from rc_jax.diagnostics.seen.stated import Seen


def of_nothing(seen: Sequence[Seen], numbers: Sequence[int]) -> Iterator[str]:
    """Notes on queries, heads and texts that see too little, which are left out of means."""
    empty: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    texts = seen[0].texts
    within = texts.queries >= 0
    counted = np.zeros((len(within), texts.most), bool)
    for each, number in zip(seen, numbers, strict=True):
        several = each.keys >= 2
        if not several.any():
            raise ValueError(f"`mask` must let at least one query see two keys, got none in layer {number}")
        some = several.any(1) & within
        for text in range(texts.most):
            counted[:, text] |= (some & (texts.queries == text)).any(1)
        blind = (each.keys == 0) & within[:, None]
        heads = np.flatnonzero(~several.any((0, 2)))
        rows = int(np.delete(blind, heads if blind.shape[1] > 1 else [], axis=1).any(1).sum())
        if rows or len(heads):
            empty.setdefault((rows, tuple(heads.tolist())), []).append(number)
    for (rows, heads), layers in empty.items():
        if rows:
            queries = "1 query sees" if rows == 1 else f"{rows} queries see"
            yield f"{listed(layers)}: {queries} nothing and {'is' if rows == 1 else 'are'} left out of all means."
        if heads:
            yield f"{listed(layers)}, {listed(heads, 'head')}: no query sees two keys, so that measures are NaN."
    there = np.stack([(texts.queries == text).any(1) for text in range(texts.most)], 1)
    short = np.argwhere(there & ~counted)
    if len(short):
        of = sorted({int(sample) for sample, _ in short})
        texts_of_them = f"{len(short)} of {there.sum()} texts, in {listed(of, 'sample')},"
        yield f"{texts_of_them} have no query that sees two keys and are left out."


def of_padding(real: np.ndarray) -> str:
    """That tokens are taken for padding, where (sample, token) is not real."""
    padded = np.flatnonzero(~real.all(1))
    counts = ", ".join(f"{int((~real[sample]).sum())} of sample {sample}" for sample in padded[:4])
    more = f" and others of {len(padded) - 4} samples" if len(padded) > 4 else ""
    return (
        f"No query of any layer has weight on {counts}{more}: these tokens are taken for padding and left out. Pass "
        '`attention_mask` or `mask` to be sure; `mask="causal"` or "none" counts them.'
    )


def of_doubt(samples: Sequence[int]) -> str:
    """That samples may have padding."""
    return (
        f"Sample{'s' * (len(samples) > 1)} {', '.join(map(str, samples))}: no query has weight on a token at an end, "
        "itself included. This may be padding, too little to be sure. They count as seen: pass `mask` if one hides "
        "them."
    )


def looking(queries: int, keys: int) -> str:
    """How many queries look at how many keys, in words."""
    return f"The {queries} queries look at {keys} keys" if queries > 1 else f"The query looks at {keys} keys"


class Said:
    """Sentences on what zeros were taken for, gathered by the layers, samples and heads that they are true of."""

    def __init__(self, notes: Sequence[str], samples: int, word: str):
        self.first, self.samples, self.word = list(notes), samples, word
        # Layers by text, samples and heads.
        self.places: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = {}

    def add(self, text: str, layer: int, samples: Sequence[int] = (), heads: Sequence[int] = ()) -> None:
        """Say a text of a layer, of all samples and heads or of some; no text says nothing."""
        if text:
            of = tuple(samples) if len(samples) < self.samples else ()
            self.places.setdefault((text, of, tuple(heads)), []).append(layer)

    def notes(self) -> tuple[str, ...]:
        """All that was said, one note for each text and its places."""
        alike: dict[tuple[str, tuple[int, ...], tuple[int, ...]], set[int]] = {}
        for (text, samples, heads), layers in self.places.items():
            alike.setdefault((text, samples, tuple(layers)), set()).update(heads)
        notes = [*self.first]
        for (text, samples, layers), heads in alike.items():
            of = [listed(each, name) for each, name in ((samples, "sample"), (sorted(heads), "head")) if each]
            notes.append(f"{', '.join([listed(layers), *of])}: {text}")
        return tuple(note.replace("WORD", self.word) for note in notes)


def listed(places: Sequence[int], name: str = "layer") -> str:
    """Places as "Layer 3" or "Layers 1–4, 7"."""
    numbers = ", ".join(runs(np.asarray(places)))
    return f"{(name.capitalize() if name == 'layer' else name)}{'s' * (len(places) > 1)} {numbers}"


def runs(places: np.ndarray) -> Iterator[str]:
    """Whole numbers in order as "1–4" and "7"."""
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        yield f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}"
