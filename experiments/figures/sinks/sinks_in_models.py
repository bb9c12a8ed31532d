"""Sinks of trained models: their weight, their value, and the tokens' distance with the sink's weight taken away."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.figures._packaged import Measures, check_settings, installed, named_checkpoints
from experiments.ledger import Measured, at_least, published
from experiments.lib import figure, sentences, style
from rc_jax import attention, collapse, network, pretrained
from rc_jax.attention import project
from rc_jax.diagnostics import SINK, importance
from rc_jax.network import block, plain_arithmetic
from rc_jax.pretrained import PackagedKind

ABOUT = figure.About(
    title="Sinks of trained models",
    caption=(
        "Trained models on docstrings of Python's standard library. A model's sink is the token with the most weight, "
        "averaged over the queries that see it, over heads and over layers, among tokens that half the queries see. "
        "First: that weight in every head, and the median; dashed is the threshold of Gu et al. (2025). "
        "Second: size of the sink's value over the mean of the others, in every head. Third: relative residual of all "
        "other tokens, for the model as it is, without the sink's weight, and without the middle token's weight; rows "
        "are renormalised, and the token still sees itself. Last: the same with every token brought to length 1, "
        "because one very large token hides all others. Bands reach from the smallest to the largest over texts."
    ),
    formula="weight of key k: mean over the queries that see it of p_ik;   ‖v_k‖/mean ‖v_j‖;   ‖res(X)‖_F/‖X‖_F",
    topic="models",
    minutes={"smoke": 0.1, "quick": 0.7, "full": 6},
)
VARIANTS = ("as it is", "without the sink", "without the middle token")
RESIDUALS = ("residual", "unit")


class Spec(figure.Spec):
    """Texts of `tokens` tokens each; kinds of packaged models, or checkpoints by their folders in place of them."""

    texts: int = 8
    tokens: int = 64
    packaged: tuple[PackagedKind, ...] = installed()
    checkpoints: tuple[str, ...] = ()


PRESETS = {
    "smoke": Spec(texts=2, tokens=8, packaged=installed()[:1]),
    "quick": Spec(),
    "full": Spec(texts=32, tokens=128),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By model: the sink, its weight and value (layer, head), the first token's weight, and residuals.

    Residuals are those of `VARIANTS` (variant, text, layer + 1), of all tokens but the sink, and so are residuals of
    tokens of length 1 and the share of the largest token in ‖X‖².
    """
    check_settings(spec.checkpoints, spec.tokens)
    data: dict[str, np.ndarray] = {}
    names, causal = [], []
    for index, (name, model) in enumerate(named_checkpoints(spec.checkpoints, spec.packaged, spec.dtype)):
        parts = _measure(model, spec)
        data |= {f"{index}_{part}": value for part, value in parts.items()}
        names.append(name)
        causal.append(model.spec.attention.causal)
    return data | {"names": np.array(names), "causal": np.array(causal), "default": np.array(not spec.checkpoints)}


def _measure(model: pretrained.Checkpoint, spec: Spec) -> Measures:
    """All numbers of one model: first as it is, which says where its sink is, then without the sink."""
    ids = jnp.asarray(sentences.token_ids(model, spec.texts, spec.tokens, spread=True))
    x = jax.vmap(model.embed)(ids)
    everything = jnp.ones((spec.tokens, spec.tokens), bool)
    states, totals, sizes = _run(model.params, x, model.spec, everything)
    queries = spec.tokens - jnp.arange(spec.tokens) if model.spec.attention.causal else jnp.array(spec.tokens)
    weight = np.asarray(importance(jnp.mean(totals, axis=0), queries))  # layer, head, key
    seen_by_half = np.broadcast_to(queries, spec.tokens) * 2 >= spec.tokens
    sink = int(np.argmax(np.where(seen_by_half, weight.mean(axis=(0, 1)), -np.inf)))

    # Sizes of values: the sink's over the mean of the others.
    size = np.asarray(jnp.mean(sizes, axis=0))
    value = size[..., sink] / np.delete(size, sink, axis=-1).mean(axis=-1)
    masks = [_hide(spec.tokens, key) for key in (sink, spec.tokens // 2)]
    hidden = [states, *(_run(model.params, x, model.spec, mask)[0] for mask in masks)]
    others = np.delete(np.arange(spec.tokens), sink)
    return {
        "sink": np.array(sink), "weight": weight[..., sink], "value": value,
        "first": np.asarray(jax.vmap(lambda total: importance(total, queries)[..., 0])(totals)),  # text, layer, head
        **{name: np.stack([np.asarray(_measures(each[:, :, others])[name]) for each in hidden]) for name in RESIDUALS},
    }  # fmt: skip


def _hide(tokens: int, key: int) -> jax.Array:
    """A mask that hides one token from all others."""
    index = jnp.arange(tokens)
    return (index[None] != key) | (index[:, None] == key)


@functools.partial(jax.jit, static_argnames="spec")
def _run(
    params: network.LayerParams, x: jax.Array, spec: network.StackSpec, mask: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """States (text, layer + 1, token, feature), and by layer and head the weight on each key and its value's size."""
    arithmetic = plain_arithmetic(spec, None, mask)

    def step(x: jax.Array, weights: network.LayerParams) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        observed = []

        def attend(part: attention.AttentionParams, read: jax.Array) -> jax.Array:
            # The block calls `attend` once, on the tokens that its attention reads.
            rows = attention.attention_weights(part, read, spec.attention, mask=mask)
            values = project(read, part.value, part.value_bias if spec.attention.bias else None, spec.attention)
            observed.append((jnp.sum(rows, axis=-2), jnp.linalg.norm(values, axis=-1)))
            return arithmetic.attend(part, read)

        out = block(weights, x, spec, dataclasses.replace(arithmetic, attend=attend))
        return out, (out, *observed[0])

    def one(tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        states, totals, sizes = network.scan_layers(step, tokens, params, spec)[1]
        return jnp.concatenate([tokens[None], states]), totals, sizes

    return jax.lax.map(one, x)


@jax.jit
def _measures(states: jax.Array) -> dict[str, jax.Array]:
    """Of every text and layer: ‖res(X)‖/‖X‖, and the same of tokens of length 1."""

    def one(x: jax.Array) -> dict[str, jax.Array]:
        sizes = jnp.linalg.norm(x, axis=-1, keepdims=True)
        both = {"residual": x, "unit": x / sizes}
        return {name: collapse.frobenius(collapse.residual(y)) / collapse.frobenius(y) for name, y in both.items()}

    return jax.vmap(jax.vmap(one))(states)


def plot(data: dict[str, np.ndarray]) -> Drawing:
    """A row for each model: the sink's weight, its value, and the two residuals without it."""
    names = data["names"].tolist()
    drawing, panels = style.figure(columns=4, rows=len(names), width=4.2, height=3.6)
    for index, name in enumerate(names):
        weight, value, *distances = panels[4 * index : 4 * index + 4]
        _heads(weight, data[f"{index}_weight"])
        style.reference(weight, y=SINK)
        _heads(value, data[f"{index}_value"])
        value.set_yscale("log")
        style.reference(value, y=1.0)
        # The residuals with and without two tokens' weights; the control is dashed.
        for ax, part in zip(distances, RESIDUALS, strict=False):
            for variant, (label, values) in enumerate(zip(VARIANTS, data[f"{index}_{part}"], strict=True)):
                color, layers = style.cycle(variant)["color"], np.arange(values.shape[1])
                dash = style.DASHES[1 if variant == 2 else 0]
                ax.fill_between(layers, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0)
                ax.plot(layers, np.median(values, axis=0), color=color, linestyle=dash, label=label)
        place = int(data[f"{index}_sink"])
        which = "first token" if not place else f"token {place + 1}"
        style.panel(weight, "layer", "weight of the sink", f"{name}: {which}")
        style.panel(value, "layer", "size of its value over the mean", "Value of the sink")
        style.panel(distances[0], "layer", "‖res(X)‖/‖X‖ of the others", "Distance of the others")
        style.panel(distances[1], "layer", "the same, tokens of length 1", "Distance in direction", legend="best")
        for ax in (weight, value, *distances):
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing


def _heads(ax: Axes, values: np.ndarray) -> None:
    """Points for all heads (layer, head) by layer, and their medians."""
    layers = np.arange(len(values))
    ax.plot(np.repeat(layers, values.shape[1]), values.ravel(), color=style.colour("trained"), marker="o",
            markersize=3, linestyle="none", alpha=0.5)  # fmt: skip
    ax.plot(layers, np.median(values, axis=1), color=style.colour("theory"))


def _first_token(data: figure.Data) -> Measured:
    """For each decoder, the first token's weight in the layer where it is largest, mean over heads and texts."""
    decoders = {str(name): index for index, name in enumerate(data["names"]) if data["causal"][index]}
    first = [data[f"{index}_first"].mean(axis=2) for index in decoders.values()]  # text, layer
    largest = [each[:, each.mean(axis=0).argmax()] for each in first]
    return Measured(
        [each.mean() for each in largest],
        standard_error=[each.std(ddof=1) / len(each) ** 0.5 for each in largest],
        where=list(decoders),
        numbers={"models": ", ".join(decoders) or "no model"},
    )


ROWS = (
    published(
        "sinks-decoder-first",
        "Language models universally give significant attention to the first token, also small ones.",
        _first_token,
        at_least(SINK),
        source="gu2025sinks",
        place="abstract",
        hypotheses="<models>, a causal mask, docstrings of Python's standard library; one model is tested, and the "
        "source speaks of all",
        interval_from="the source's threshold for a head, here for the mean of a layer's heads",
        note="weight of the first token, mean over heads and texts, in the layer where it is largest",
    ),
)
