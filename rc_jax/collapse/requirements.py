"""The networks that a theory covers: one check, and the reasons why another network is not covered."""

import dataclasses

from rc_jax.attention import AttentionSpec
from rc_jax.network import StackSpec

_PLAIN = {field.name: field.default for kind in (StackSpec, AttentionSpec) for field in dataclasses.fields(kind)}

# P is the softmax of α (x_i W_Q + b_Q)·(x_j W_K + b_K), with one α, where these parts are the defaults.
BILINEAR = {
    "weights": "exponentials over one normaliser do not see a constant added to a row",
    "scores": "they are bilinear in the tokens",
    "rotary": "with positions in the logits rows differ however alike the tokens are, and nothing is cubed",
    "qk_norm": "logits of normalised queries and keys are not bilinear in the tokens",
    "scale_law": "one scale for all rows is what makes logits bilinear in the tokens",
    "soft_cap": "a cap bends the logits, and softmax sees more of them than their differences",
    "output_gate": "a gate multiplies a head by what differs from token to token",
}


class NotCovered(ValueError):
    """The theory behind a function does not cover the network it was given; the message says why.

    It is a class of its own, so that a program can catch it and still see every other `ValueError`.

    Example:
        >>> import jax
        >>> from rc_jax import attention, collapse, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=4, scores="additive"), depth=2)
        >>> params, x = network.init(jax.random.key(0), spec), jax.random.normal(jax.random.key(1), (3, 4))
        >>> try:
        ...     collapse.log_residuals(params, x, spec)
        ... except collapse.NotCovered as reason:
        ...     print(reason)
        `spec` must have scores='dot' or 'cosine': an additive score is no product, got 'additive'
    """


def check_covered(spec: StackSpec, reasons: dict[str, str], *, mixed: bool = False) -> None:
    """Raise unless every named part of the network or of its attention is what it is by default, and say why.

    Layers of two kinds are refused unless `mixed`.
    """
    if spec.local is not None and not mixed:
        raise NotCovered("`spec` must have local=None: all layers must be of one kind, got layers of two")
    for name, reason in reasons.items():
        value, default = getattr(spec if hasattr(spec, name) else spec.attention, name), _PLAIN[name]
        if value != default:
            raise NotCovered(f"`spec` must have {name}={default!r}: {reason}, got {value!r}")


def check_split(spec: StackSpec, reasons: dict[str, str], *, mixed: bool = False) -> None:
    """Raise unless attention is of products or cosines and weights that split tokens pass without cancellation."""
    for kind in spec.kinds:
        _check_split(kind, reasons)
    check_covered(spec, {}, mixed=mixed)


def _check_split(spec: StackSpec, reasons: dict[str, str]) -> None:
    # Weights that have a form, then scores.
    check_covered(spec, reasons)
    if spec.mlp is not None and spec.mlp.experts is not None:
        raise NotCovered(
            "`spec` must have an MLP of one map: which experts a token takes jumps as the token moves, got "
            f"{spec.mlp.experts.count} experts"
        )
    layer = spec.attention
    if layer.kind.reads != "scores":
        kind = layer.kind.name
        raise NotCovered(f"`spec` must have weights that read scores, which split as tokens do, got {kind!r}")
    if layer.kind.maps > 1 and not layer.kind.shift_invariant:
        maps, kind = layer.kind.maps, layer.kind.name
        raise NotCovered(
            f"`spec` must have weights that a constant in a row of each of their {maps} score matrices does not change "
            f"(`shift_invariant`): without it digits of their levels are lost, got {kind!r}"
        )
    if layer.scores == "additive":
        raise NotCovered("`spec` must have scores='dot' or 'cosine': an additive score is no product, got 'additive'")
    if layer.rank is not None and layer.scores == "cosine":
        raise NotCovered("`spec` must have scores='dot' with a rank: cosines of E K are not split, got 'cosine'")
