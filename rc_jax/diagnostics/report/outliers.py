"""Heads that differ from the model's other heads, each by its layer and number."""

from collections.abc import Iterator, Sequence

import numpy as np

from rc_jax.diagnostics.record import Diagnosis, Outlier

MEASURES = {
    "relative_entropy": "H/log n",
    "largest_weight": "max p",
    "sink_weight": "weight on key 0",
    "strongest_weight": "weight on key KEY, its top key,",
    "self_weight": "weight on the query's own key",
    "previous_weight": "weight on the key before",
    "second_singular_value": "σ₂/σ₁",
}
"""Measures between 0 and 1 of which a head may be far from the others."""
OF_A_KEY = ("sink_weight", "strongest_weight")
MARGIN, DEVIATIONS = 0.25, 6.0
NAMED = 8  # heads in the sentences; `outliers` has all


def outliers(diagnosis: Diagnosis) -> tuple[Outlier, ...]:
    """Heads far from the median of all heads of the model: by at least 0.25, and by six robust standard deviations.

    The robust deviation is 1.4826 times the median distance from the median, the standard deviation if heads were
    normally distributed. Of fewer than four heads nothing is said.

    Source: Rousseeuw and Croux (1993) for the deviation.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> weights = np.full((2, 4, 8, 8), 1 / 8, np.float32)
        >>> weights[1, 2] = np.eye(8)
        >>> [(each.layer, each.head) for each in diagnostics.attention(weights).outliers()][:1]
        [(1, 2)]
    """
    found: list[Outlier] = []
    for name in MEASURES:
        values = np.asarray(diagnosis.measures.get(name, np.zeros((0, 0))), float)
        known = np.isfinite(values)  # a head in which no query sees two keys has no number
        if known.sum() < 4:
            continue
        median = float(np.median(values[known]))
        distance = np.where(known, np.abs(values - median), 0)
        far = distance > max(MARGIN, DEVIATIONS * 1.4826 * float(np.median(distance[known])))
        keys = diagnosis.measures["strongest_key"] if name == "strongest_weight" else np.zeros_like(values)
        for layer, head in np.argwhere(far).tolist():
            key = int(keys[layer, head]) if name in OF_A_KEY else None
            found.append(Outlier(diagnosis.numbers[layer], head, name, float(values[layer, head]), median, key))
    return tuple(sorted(found, key=lambda each: each[:2]))


def sentence_of(found: Sequence[Outlier]) -> Iterator[str]:
    """One sentence for each head, at most eight, and one for how many more there are."""
    heads: dict[tuple[int, int], list[Outlier]] = {}
    for each in found:
        heads.setdefault(each[:2], []).append(each)
    farthest = sorted(heads, key=lambda head: -max(abs(each.value - each.median) for each in heads[head]))
    for layer, head in sorted(farthest[:NAMED]):
        values = [
            f"{MEASURES[each.measure].replace('KEY', str(each.key))} {each.value:.2g} ({each.median:.2g})"
            for each in heads[layer, head]
        ]
        told = ", ".join(values)
        yield f"Layer {layer}, head {head} is far from the other heads, whose median is in brackets: {told}."
    if len(farthest) > NAMED:
        yield f"{len(farthest) - NAMED} more heads are far from the others: `outliers()` names them."
