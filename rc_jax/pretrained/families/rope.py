"""Rotary positions as the decoder families' settings describe them, in the older and in the newer form."""

import math
from typing import Any

import numpy as np

from rc_jax.attention import Rotary
from rc_jax.pretrained.config import Config
from rc_jax.pretrained.tensor_source import Stored

_PARTS = "rope_parameters"
_OLDER = "rope_scaling"


def read_rotary(
    config: Config,
    *,
    base: str = "rope_theta",
    default_base: float = 10_000.0,
    partly: tuple[str, float, int] | None = None,
) -> Rotary:
    """The rotation of all layers; `rope_scaling` (older) goes before `rope_parameters`, as in the transformers library.

    Args:
        config: the settings.
        base: the name of the base in the older form.
        default_base: the base where none is stated.
        partly: where part of a head is rotated, the name of its share in the older form, the default, and the width of
            a head. Elsewhere a share other than 1 is refused.
    """
    part = config.section(_OLDER if config.get(_OLDER) else _PARTS)
    if "rope_type" not in part.values and any(isinstance(value, dict) for value in part.values.values()):
        raise config.refuse(part.within[:-1], "be one rotation for all layers", sorted(part.values))
    if partly is None:
        for section in (config, part):
            section.choice("partial_rotary_factor", (1, 1.0), 1)
        return _rotary(config, part, base, default_base)
    # The share of a head that is rotated, as a number of features.
    older, default, head = partly
    share = part.positive("partial_rotary_factor", config.positive(older, default))
    width = int(head * share)
    if width < 2 or width % 2 or width > head:
        where, name = (config, older) if part.get("partial_rotary_factor") is None else (part, "partial_rotary_factor")
        raise where.refuse(name, f"rotate an even number of the {head} features of a head", share)
    return _rotary(config, part, base, default_base, None if width == head else width)


def read_two_rotaries(config: Config) -> tuple[Rotary, Rotary]:
    """The rotations of Gemma 3: of its layers without a window, which may be scaled, and of those with one."""
    parts = config.section(_PARTS)
    names = ("full_attention", "sliding_attention")
    if any(name not in names for name in parts.values):
        raise config.refuse(_PARTS, f"be one rotation for each of {' and '.join(names)}", sorted(parts.values))
    far, near = (parts.section(name) for name in names)
    # The older form scales the first of them.
    if config.get(_OLDER):
        older = config.section(_OLDER)
        far = Config(config.file, far.values | older.values, older.within)
    for section in (config, far, near):
        section.choice("partial_rotary_factor", (1, 1.0), 1)
    return _rotary(config, far, "rope_theta", 1e6), _rotary(config, near, "rope_local_base_freq", 10_000.0)


def _rotary(config: Config, part: Config, base_name: str, default: float, width: int | None = None) -> Rotary:
    """The rotation that a section describes; its base may stand outside, under its older name."""
    # YaRN's factor on queries and keys would be on the rotated part of a head only.
    kinds = ("default", "linear", "llama3") if width else ("default", "linear", "llama3", "yarn")
    kind = part.choice("type" if part.get("rope_type") is None else "rope_type", kinds, "default")
    base = part.positive("rope_theta", config.positive(base_name, default))
    # Every scaling but the default divides frequencies by a factor.
    if base <= 1:
        where, name = (config, base_name) if part.get("rope_theta") is None else (part, "rope_theta")
        raise where.refuse(name, "be above 1", base)
    settings: dict[str, Any] = {"base": base, "width": width}
    if kind == "default":
        return Rotary(**settings)
    factor = part.positive("factor")
    if factor < 1:
        raise part.refuse("factor", "be at least 1", factor)
    settings |= {"scaling": kind, "factor": factor}
    if kind == "linear":
        return Rotary(**settings)
    name = "original_max_position_embeddings"
    settings["original_tokens"] = config.integer(name, part.integer(name, config.integer("max_position_embeddings")))
    if kind == "llama3":
        low, high = _rising(part, "low_freq_factor", "high_freq_factor")
        return Rotary(**settings, low_frequency=low, high_frequency=high)
    part.choice("truncate", (True,), True)
    slow, fast = _rising(part, "beta_slow", "beta_fast", 1.0, 32.0)
    return Rotary(**settings, slow=slow, fast=fast, attention_factor=_yarn_temperature(part, factor))


def _rising(
    part: Config, low: str, high: str, low_default: float | None = None, high_default: float | None = None
) -> tuple[float, float]:
    """Two settings of which the second must be larger."""
    first, second = part.positive(low, low_default), part.positive(high, high_default)
    if not first < second:
        raise part.refuse(high, f"be above {low}={first}", second)
    return first, second


def _yarn_temperature(part: Config, factor: float) -> float:
    """The factor on queries and keys: as it is given, or the ratio of the two that DeepSeek's models give."""
    numerator, denominator = part.get("mscale"), part.get("mscale_all_dim")
    if part.get("attention_factor") is not None:
        return part.positive("attention_factor")
    if numerator and denominator:
        top, bottom = part.positive("mscale"), part.positive("mscale_all_dim")
        return (0.1 * top * math.log(factor) + 1) / (0.1 * bottom * math.log(factor) + 1)
    return 0.1 * math.log(factor) + 1


def pairs_together(values: Stored, width: int | None = None) -> Stored:
    """Features i and i + width/2, which these families rotate together, as features 2i and 2i + 1 of the last axis.

    With a `width` these are the first features, and the others stay.
    """
    rotated = values.shape[-1] if width is None else width
    order = np.arange(rotated).reshape(2, rotated // 2).T.ravel()
    return values[..., np.concatenate([order, np.arange(rotated, values.shape[-1])])]
