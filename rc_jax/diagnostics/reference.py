"""What a diagnosis is compared with: trained models that come as packages, and random weights of the same shape."""

import functools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.weights import attention

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = Path(__file__).with_name("reference.json")
RANDOM = "random"
MOST_TOKENS, MOST_NUMBERS = 2048, 2**24


@functools.cache
def _models() -> dict[str, list[Diagnosis]]:
    """The trained models by name, each at several numbers of tokens, as the file in this folder has them.

    `python -m experiments.reference_values` writes it.
    """
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return {model["name"]: [Diagnosis.from_dict(each) for each in model["at"]] for model in stored["models"]}


def trained(diagnosis: Diagnosis) -> "Sequence[tuple[str, Diagnosis]]":
    """The packaged models with the same kind of attention, each at the nearest number of tokens, named with that."""
    nearby: list[tuple[str, Diagnosis]] = []
    if diagnosis.queries is not None:  # all of them read their own tokens
        return nearby
    for name, several in _models().items():
        if diagnosis.causal in (None, several[0].causal):
            nearest = min(several, key=lambda each: (abs(math.log(each.tokens / diagnosis.tokens)), -each.tokens))
            nearby.append((f"{name}, n = {nearest.tokens}", nearest))
    return nearby


def random(diagnosis: Diagnosis) -> "Sequence[tuple[str, Diagnosis]]":
    """Softmax of independent standard Gaussian logits at the same number of tokens; nothing beyond 2048 tokens.

    This is what 1/√d gives queries and keys whose entries are independent and have variance 1.
    """
    normal = "sink_weight" in diagnosis.measures
    if (
        not normal
        or diagnosis.queries is not None
        or diagnosis.causal is None
        or not 2 <= diagnosis.tokens <= MOST_TOKENS
    ):
        return []
    # The shape that was read, if it is not too large, so that the programs that were compiled for it serve again.
    shape = (diagnosis.samples, diagnosis.heads, diagnosis.tokens, diagnosis.tokens)
    return [(RANDOM, _random(shape if math.prod(shape) <= MOST_NUMBERS else (1, 1, *shape[2:]), diagnosis.causal))]


@functools.lru_cache(maxsize=16)
def _random(shape: tuple[int, ...], causal: bool) -> Diagnosis:
    tokens, logits = shape[-1], np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    weights = np.exp(logits) * np.tri(tokens, dtype=np.float32) if causal else np.exp(logits)
    return attention([weights / weights.sum(-1, keepdims=True)], causal=causal)


def beside(diagnosis: Diagnosis) -> "Sequence[tuple[str, Diagnosis]]":
    """All that a diagnosis is compared with."""
    return [*trained(diagnosis), *random(diagnosis)]
