"""Changes of a design, one at a time."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from rc_jax import scale
from rc_jax._numerics import arguments
from rc_jax.network import StackSpec
from rc_jax.study.initialisation.design import Design

Change = Callable[[StackSpec], StackSpec]
KINDS = ("softmax_plus_one", "sigmoid", "entmax15")


def changed(design: Design, changes: Any, count: int) -> tuple[dict[str, Design], tuple[str, ...]]:
    """The designs by name, and which changes this network does not allow."""
    if changes is None:
        return {}, ()
    if changes == "usual":
        return usual(design, count)
    if not isinstance(changes, Mapping):
        raise TypeError(
            f"`changes` must be 'usual' or a mapping of names to changes, got {arguments.describe(changes)}"
        )
    designs = {}
    for name, change in changes.items():
        if not isinstance(change, StackSpec) and not callable(change):
            got = arguments.describe(change)
            raise TypeError(f"`changes[{name!r}]` must be a StackSpec or a function of the network's, got {got}")
        spec = change if isinstance(change, StackSpec) else change(design.spec)
        if not isinstance(spec, StackSpec):
            raise TypeError(f"`changes[{name!r}]` must give a StackSpec, got {arguments.describe(spec)}")
        _keep(name, design, spec, count)
        designs[str(name)] = design.with_spec(spec)
    return designs, ()


def _keep(name: str, design: Design, spec: StackSpec, count: int) -> None:
    """Refuse a change of what a config drew for its own depth and heads, or of the number of tokens.

    Raises:
        ValueError: with what the change must keep.
    """
    own, tokens = design.spec, spec.attention.tokens
    kept = {
        "depth": (own.depth, spec.depth, design.shared is not None or design.norms is not None),
        "heads": (own.attention.heads, spec.attention.heads, design.key_heads is not None),
        "tokens": (count, count if tokens is None else tokens, True),
    }
    for what, (before, after, fixed) in kept.items():
        if fixed and after != before:
            way = "" if what == "tokens" else ": study a config with the other number by itself"
            raise ValueError(f"`changes[{name!r}]` must keep {what}={before}, got {after}{way}")


def usual(design: Design, count: int) -> tuple[dict[str, Design], tuple[str, ...]]:
    """Strength of branches, place of the norm, scale, kind, and norms of queries and keys."""
    spec, depth = design.spec, design.spec.depth
    layer, designs, refused = spec.attention, {}, []

    def add(name: str, change: Callable[[], Design]) -> None:
        try:
            designs[name] = change()
        except ValueError as error:
            refused.append(f"{name}: {error}.")

    if spec.skip:
        add("branches × 1/√(2L)", lambda: design._replace(branch=design.branch * (2 * depth) ** -0.5))
        if spec.parallel:
            refused.append("λ² = 1 − 2/L, β² = 2/L: attention and MLP side by side have one sum.")
        elif depth > 2:
            strengths = {"skip": (1 - 2 / depth) ** 0.5, "branch": (2 / depth) ** 0.5}
            add("λ² = 1 − 2/L, β² = 2/L", lambda: design._replace(**strengths))
    for norm in ("pre", "post", "peri", None):
        if norm != spec.norm:
            add(f"norm {norm or 'none'}", lambda norm=norm: design.with_spec(dataclasses.replace(spec, norm=norm)))
    if spec.norm == "pre":
        add("norms × 1/√l", lambda: design._replace(norms=tuple((1 + index) ** -0.5 for index in range(depth))))
    if layer.kind.own_scores is None:
        if layer.scale is not None or layer.qk_norm == "unit" or layer.scores != "dot":
            add("scale of unit scores", lambda: _each(design, scale=None))
        add("scale × 2.5", lambda: design._replace(sharpness=2.5 * design.sharpness))
        if keys := seen_keys(spec, count):
            # The typical scale is the best one of scores that deviate by 1, which this network's need not do.
            typical = float(scale.typical_scale(jax.random.key(0), keys))
            name = f"scale × {typical:.2f} (typical for scores of deviation 1)"
            add(name, lambda: design._replace(sharpness=typical * design.sharpness))
        for kind in KINDS:
            if kind != layer.kind.name:
                add(kind, lambda kind=kind: _each(design, weights=kind))
        norm = "rms" if layer.qk_norm is None else None
        add("queries and keys normed" if norm else "queries and keys not normed", lambda: _each(design, qk_norm=norm))
    return designs, tuple(refused)


def seen_keys(spec: StackSpec, count: int) -> int:
    """The geometric mean of the keys that rows of all layers see, as `scale.effective_keys`; 0 where all see one."""
    at, logs = np.arange(count), []
    for index in range(spec.depth):
        layer = spec.kinds[spec.kind_of(index)].attention
        reach = count if layer.window is None else layer.window
        last = at if layer.causal else np.minimum(at + reach, count - 1)
        keys = np.minimum(last - np.maximum(at - reach, 0) + 1, layer.top_k or count)
        keys = keys if layer.rank is None else np.full(count, layer.rank)
        logs.append(np.log(keys[keys > 1]))
    found = np.concatenate(logs)
    return round(float(np.exp(found.mean()))) if found.size else 0


def _each(design: Design, **fields: Any) -> Design:
    """The same change of the attention of every kind of layer."""
    spec = design.spec
    local = spec.local and dataclasses.replace(spec.local, **fields)
    return design.with_spec(
        dataclasses.replace(spec, attention=dataclasses.replace(spec.attention, **fields), local=local)
    )
