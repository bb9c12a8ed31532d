"""What is unusual about a diagnosis, in words: layers where more heads do something than in any layer of others."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rc_jax.diagnostics.implied_scale import random_entropy
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.seen import listed

COLLAPSE = 0.25
"""Entropy has collapsed where H/log n of the median head is below this share of what random logits give.

It is half of the least that the packaged trained models have: 0.45, of SmolLM2-135M at n = 512; MiniLM-L6 has 0.70 at
n = 32. Single heads, and single layers, of healthy models lie below: the threshold is that of a whole model.
"""
NAMED = 8  # sinks in sentences
MARGIN = 0.1  # by how much the share of heads of a layer must exceed that of others


class Feature(NamedTuple):
    """Something that a head does or does not do."""

    needs: tuple[str, ...]
    says: str
    of: Callable[[Diagnosis], np.ndarray]


FEATURES = (
    Feature(
        ("sink_rate",),
        "put more than the threshold of their weight on token 0",
        lambda measures: measures["sink_rate"] > 0.5,
    ),
    Feature(
        ("strongest_key", "strongest_weight"),
        "put more than 0.3 of their weight on one later token",
        lambda measures: (measures["strongest_weight"] > 0.3) & (measures["strongest_key"] > 0),
    ),
    Feature(
        ("entropy_scale",),
        "mix almost evenly, as Gaussian logits of deviation below 0.2 do",
        lambda measures: measures["entropy_scale"] < 0.2,
    ),
    Feature(
        ("scale_ratio",),
        "are sharper than the scale of most gradient: α above 1.5 α*",
        lambda measures: measures["scale_ratio"] > 1.5,
    ),
    Feature(
        ("largest_weight",),
        "copy one token: their largest weight is above 0.9",
        lambda measures: measures["largest_weight"] > 0.9,
    ),
    Feature(
        ("second_singular_value",),
        "give all tokens nearly the same output: σ₂/σ₁ below 0.05",
        lambda measures: measures["second_singular_value"] < 0.05,
    ),
    Feature(
        ("sink_value_ratio", "sink_rate"),
        "send much weight to token 0 although its value is not small: ‖v₀‖ above the mean of the others",
        lambda measures: (measures["sink_value_ratio"] > 1) & (measures["sink_rate"] > 0.5),
    ),
)


def unusual(
    diagnosis: Diagnosis,
    trained: Sequence[tuple[str, Diagnosis]],
    random: Sequence[tuple[str, Diagnosis]],
) -> tuple[str, ...]:
    """One sentence for each feature of which some layer has more heads than any layer of the trained models.

    Args:
        diagnosis: what is judged.
        trained: named diagnoses of trained models. Without any, random weights take their place.
        random: of random weights, of which the sentences tell too.
    """
    others = [*trained, *random]
    return (
        *_of_entropy(diagnosis, trained),
        *_of_heads(diagnosis, trained or random, others),
        *_of_states(diagnosis, trained),
    )


def sinks(diagnosis: Diagnosis) -> Iterator[str]:
    """Which token of which texts is the sink of how many heads, with how much weight; how often it is the first one.

    The sink of a text is the token that is the strongest key, with a weight above the threshold, of most heads. Tokens
    are counted from the start of the text.
    """
    if "strongest_key" not in diagnosis.by_text:
        return
    keys, weights = (diagnosis.by_text[name] for name in ("strongest_key", "strongest_weight"))
    found: dict[int, list[tuple[int, np.ndarray]]] = {}
    for text, above in enumerate(weights > diagnosis.threshold):
        if above.any():
            tokens, times = np.unique(keys[text][above], return_counts=True)
            token = int(tokens[times.argmax()])
            found.setdefault(token, []).append((text, weights[text][above & (keys[text] == token)]))
    packed = len(set(diagnosis.by_text["sample"].tolist())) < len(keys)
    most_first = sorted(found.items(), key=lambda each: -len(each[1]))
    for token, texts in most_first[:NAMED]:
        places = [text if packed else int(diagnosis.by_text["sample"][text]) for text, _ in texts]
        where = listed(places, "text" if packed else "sample").capitalize()
        share = float(np.median(np.concatenate([of for _, of in texts])))
        counts = [len(of) for _, of in texts]
        heads = "–".join(map(str, sorted({min(counts), max(counts)})))
        yield (
            f"{where}: token {token} is the sink of {heads} of {keys[0].size} heads, with {share:.2g} of the weight "
            "at the median."
        )
    if len(found) > NAMED:
        yield f"{len(found) - NAMED} more tokens are sinks of other texts: `by_text` has them."
    if found:
        all_of_them = sum(map(len, found.values()))
        yield f"The sink is the first token in {len(found.get(0, []))} of {all_of_them} texts that have one."


def entropy_share(diagnosis: Diagnosis) -> tuple[float, float]:
    """H/log n of the median head, and that of random logits at the same number of tokens."""
    tokens = diagnosis.by_text.get("tokens", np.array([diagnosis.tokens]))
    expected = random_entropy(max(2, int(np.median(tokens))), bool(diagnosis.causal) and diagnosis.queries is None)
    return float(np.nanmedian(diagnosis["relative_entropy"])), expected


def _of_entropy(diagnosis: Diagnosis, trained: Sequence[tuple[str, Diagnosis]]) -> Iterator[str]:
    """Entropy collapse of the model as a whole."""
    values = diagnosis.measures.get("relative_entropy")
    if values is None or np.isnan(values).all():
        return
    median, expected = entropy_share(diagnosis)
    if median < COLLAPSE * expected:
        others = "; ".join(f"{name}: {np.divide(*entropy_share(other)):.2g}" for name, other in trained)
        yield (
            f"Entropy has collapsed: H/log n of the median head is {median:.2g}, {median / expected:.2g} of the "
            f"{expected:.2g} that {diagnosis.tokens} random keys give, and below {COLLAPSE} of it"
            + (f" ({others})." if others else ".")
        )


def _of_heads(
    diagnosis: Diagnosis, judges: Sequence[tuple[str, Diagnosis]], others: Sequence[tuple[str, Diagnosis]]
) -> Iterator[str]:
    for feature in FEATURES:
        if not judges or any(name not in diagnosis.measures for name in feature.needs):
            continue
        # Layers where a larger share of heads does so than in any layer of the others that were measured for it.
        does = feature.of(diagnosis)
        known = [(name, feature.of(other)) for name, other in others if set(feature.needs) <= set(other.measures)]
        least = max((each.mean(1).max() for name, each in known if name in dict(judges)), default=0)
        layers = np.flatnonzero(does.mean(1) > least + MARGIN)
        if len(layers):
            count, of = int(does[layers].sum()), does[layers].size
            told = "; ".join(f"{name}: {_most(each)}" for name, each in known)
            named = listed([diagnosis.numbers[layer] for layer in layers])
            yield f"{named}: {count} of {of} heads {feature.says}" + (f" ({told})." if told else ".")


def _most(does: np.ndarray) -> str:
    """The largest number of heads in a layer."""
    most = int(does.sum(1).max())
    where = "" if len(does) == 1 else " of a layer"
    return f"at most {most} of {does.shape[1]}{where}" if most else "none"


def _of_states(diagnosis: Diagnosis, others: Sequence[tuple[str, Diagnosis]]) -> Iterator[str]:
    """Tokens nearer to each other than those of any trained model."""
    known = [(name, other["relative_residual"].min()) for name, other in others if "cosine" in other.measures]
    if "relative_residual" not in diagnosis.measures or not known:
        return
    residual = diagnosis["relative_residual"]
    least = int(np.argmin(residual))
    if residual[least] < 0.5 * min(value for _, value in known):
        told = "; ".join(f"{name}: {value:.2g} at least" for name, value in known)
        yield f"In hidden state {least} tokens differ by {residual[least]:.2g} of their size ({told})."
    # The mean rate between the first state and the last.
    if len(residual) > 1 and residual[0] > 0 and residual[-1] > 0:
        rate = float(np.log(residual[-1] / residual[0])) / (len(residual) - 1)
        if rate < -0.1:
            yield f"The share of X that differs between tokens falls by {-rate:.2g} nats a layer on average."
