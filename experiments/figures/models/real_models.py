"""Dong et al.'s figure: how far the tokens of real models are apart after each layer, with parts taken away."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.figures._medians import median_error
from experiments.figures._packaged import (
    Measures,
    beside_initial,
    check_settings,
    installed,
    log_residuals,
    named_checkpoints,
)
from experiments.ledger import Measured, at_least, at_most, published
from experiments.lib import figure, sentences, style
from experiments.lib.figure import About, Data
from rc_jax import collapse, network, pretrained
from rc_jax.pretrained import PackagedKind

ABOUT = About(
    title="Real models, with their skips and MLPs taken away",
    caption=(
        "This is the figure of Dong et al. (2021) with one panel for each checkpoint (`--checkpoint FOLDER`). By "
        "default these are the 6-layer BERT all-MiniLM-L6-v2 and, where it is installed, the 30-layer Llama "
        "SmolLM2-135M-Instruct. They read docstrings of Python's standard library, beside copies drawn as the model "
        "was before training. A GGUF file does not say how it was drawn, so its copies have deviation 0.02. Both "
        "skips and the MLPs (each with its norm) are switched; the other norms stay as in the checkpoint, and nothing "
        "is retrained. States are those before a decoder's last norm. Lines are medians and bands reach from 10 % to "
        "90 % over texts and initialisations, in the composite norm of Dong et al. and in float64. The vertical axis "
        "is logarithmic down to 0.1 and doubly logarithmic below: a doubly exponential fall is a straight line there. "
        "Thin lines go on below the rounding floor, in cancellation-free arithmetic and the Frobenius norm, where "
        "this package has one for the layer. In a causal model token i sees tokens 1 … i only: its tokens meet the "
        "first one, exponentially and not doubly so."
    ),
    formula="‖res(X^l)‖₁,∞ / ‖X^l‖₁,∞,   res(X) = X − 1x̄ᵀ,   ‖X‖₁,∞ = √(‖X‖₁ ‖X‖_∞)",
    topic="models",
    minutes={"smoke": 0.1, "quick": 0.9, "full": 6},  # of the small encoder; the decoder takes longer than that
    core=True,
)

SWITCHES = ("attention", "skip", "mlp", "full")  # named by what is added to attention
LABELS = {"attention": "attention only", "skip": "+ skip", "mlp": "+ MLP", "full": "+ skip + MLP (the model)"}
VARIANTS = {"trained": "trained", "initial": "random initialisation"}
# Fixed before anything was measured. Dong et al.'s figure has a linear axis that starts at 0: what its reader sees as
# zero is at most a twentieth.
COLLAPSED = 0.05
DEEPEST = 1000  # decades; no curve is drawn below
NEAR = 100.0  # rounding floors; a residual that stays above is told by plain arithmetic


class Spec(figure.Spec):
    """Texts of `tokens` tokens each, the same for the model and for `initialisations` randomly initialised copies.

    `exact`: the switches that are measured below the rounding floor too, where a residual comes near it. `packaged`:
    the kinds of packaged checkpoints that take the place of `checkpoints` where there are none.
    """

    dtype: str = "float64"
    texts: int = 8
    tokens: int = 64
    initialisations: int = 2
    exact: tuple[str, ...] = ("attention", "mlp")
    checkpoints: tuple[str, ...] = ()
    packaged: tuple[PackagedKind, ...] = installed()


PRESETS = {
    "smoke": Spec(texts=4, tokens=8, initialisations=1, exact=(), packaged=installed()[:1]),
    "quick": Spec(),
    "full": Spec(texts=32, tokens=128, initialisations=8),  # the 32 texts of 128 tokens of Dong et al.
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """For each checkpoint and variant, relative residuals (run, switch, layer + 1), also exact (run, layer + 1)."""
    check_settings(spec.checkpoints, spec.tokens)
    data: dict[str, np.ndarray] = {}
    names, floors, causal = [], [], []
    for index, (name, trained) in enumerate(named_checkpoints(spec.checkpoints, spec.packaged, spec.dtype)):
        parts = _compare(trained, spec)
        data |= {f"{index}_{part}": value for part, value in parts.items()}
        names.append(name)
        floors.append(_floor(trained.spec))
        causal.append(trained.spec.attention.causal)
    about = {"names": names, "floors": floors, "causal": causal, "default": not spec.checkpoints}
    return data | {key: np.asarray(value) for key, value in about.items()}


def _compare(trained: pretrained.Checkpoint, spec: Spec) -> Measures:
    """A checkpoint beside its randomly initialised copies, on the same texts."""
    ids = jnp.asarray(sentences.token_ids(trained, spec.texts, spec.tokens, spread=True))
    measure = functools.partial(_measure, ids=ids, deep=spec.exact)
    return beside_initial(trained, measure, spec.seed, spec.initialisations)


def _floor(stack: network.StackSpec) -> float:
    """Below it a relative residual is rounding: an entry of a token is a sum of d_model products."""
    return float(np.sqrt(stack.attention.d_model) * jnp.finfo(jnp.result_type(float)).eps)


def _measure(checkpoint: pretrained.Checkpoint, ids: jax.Array, deep: tuple[str, ...]) -> Measures:
    """Both measurements of one set of parameters on all texts; no exact one where it is not needed or not covered."""
    x = jax.vmap(checkpoint.embed)(ids)
    params, full = checkpoint.params, checkpoint.spec
    switched = {
        name: dataclasses.replace(
            full, skip=name in ("skip", "full"), mlp=full.mlp if name in ("mlp", "full") else None
        )
        for name in SWITCHES
    }
    # Plain arithmetic for all; cancellation-free arithmetic only for what comes near the rounding floor.
    plain = {name: _plain(params, x, stack) for name, stack in switched.items()}
    curves = {"relative": np.stack([plain[name]["relative"] for name in SWITCHES], axis=1)}
    for name in deep:
        if np.min(plain[name]["relative"]) > NEAR * _floor(full):
            continue
        with contextlib.suppress(collapse.NotCovered):
            logs = log_residuals(params, x, switched[name])
            curves[f"exact_{name}"] = np.asarray(logs) - np.log(plain[name]["size"])
    return curves


@functools.partial(jax.jit, static_argnames="spec")
def _plain(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> dict[str, jax.Array]:
    """‖res(X^l)‖/‖X^l‖ in the composite norm, and ‖X^l‖_F: (text, layer + 1) each."""

    def measure(state: jax.Array) -> dict[str, jax.Array]:
        ratio = collapse.norm_1inf(collapse.residual(state)) / collapse.norm_1inf(state)
        return {"relative": ratio, "size": collapse.frobenius(state)}

    return jax.lax.map(lambda tokens: jax.vmap(measure)(network.hidden_states(params, tokens, spec)), x, batch_size=4)


def plot(data: dict[str, np.ndarray]) -> Figure:
    """One panel for each checkpoint."""
    names = data["names"].tolist()
    drawing, panels = style.figure(len(names), width=7.2 if len(names) == 1 else 4.5, height=4.8)
    deepest = max(_plot_model(ax, data, index) for index, ax in enumerate(panels))
    for index, (name, ax) in enumerate(zip(names, panels, strict=True)):
        _decades(ax, min(1.6 * deepest, DEEPEST))
        causal = ", causal" if data["causal"][index] else ""
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.labels(ax, "layer", "relative residual ‖res(X)‖₁,∞ / ‖X‖₁,∞", f"{name}{causal}")
    entries = {str(line.get_label()): line for ax in panels for line in ax.get_legend_handles_labels()[0]}
    drawing.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=3)
    return drawing


def _plot_model(ax: Axes, data: dict[str, np.ndarray], index: int) -> float:
    """Draw a panel; the decades it goes down."""
    bottom = -np.log10(float(data["floors"][index]))
    deepest, below = bottom, False
    for (variant, name), dash in zip(VARIANTS.items(), ("-", style.DASHES[1]), strict=True):
        for position, switch in enumerate(SWITCHES):
            # Curves end where rounding begins; the exact residual goes on as a thin line.
            runs = np.maximum(data[f"{index}_{variant}_relative"][:, position], 1e-300)
            low, middle, high = -np.log10(np.quantile(runs, [0.1, 0.5, 0.9], axis=0))
            lost = middle >= bottom
            end = int(np.argmax(lost)) if lost.any() else middle.size
            layers, color = np.arange(middle.size), style.colour(switch)
            ax.fill_between(
                layers[:end], np.minimum(low[:end], bottom), high[:end], color=color, alpha=0.18, linewidth=0
            )
            label = LABELS[switch] if variant == "trained" else None
            marker = style.MARKERS[position]
            ax.plot(layers[:end], middle[:end], color=color, linestyle=dash, marker=marker, label=label)
            exact = data.get(f"{index}_{variant}_exact_{switch}")
            if end < middle.size and exact is not None:
                below = True
                deep = -np.median(exact, axis=0) / np.log(10)
                deepest = max(deepest, float(np.nanmax(deep)))
                ax.plot(layers[end - 1 :], deep[end - 1 :], color=color, linestyle=dash, linewidth=0.9)
        ax.plot([], [], color=style.colour("theory"), linestyle=dash, label=name)
    if below:
        ax.plot([], [], color=style.colour("theory"), linewidth=0.9, label="beyond rounding (cancellation-free)")
    ax.axhline(
        bottom, color=style.colour("reference"), linestyle=style.DASHES[2], linewidth=1.1, label="rounding floor"
    )
    return deepest


def _decades(ax: Axes, deepest: float) -> None:
    """An axis of decades below 1: linear for the first, logarithmic beyond, downwards."""
    ax.set_yscale("symlog", linthresh=1, linscale=0.7)
    ticks = [0.0, 0.3] + [each for power in range(6) for each in (10.0**power, 3 * 10.0**power) if each <= deepest]
    ax.set_yticks(ticks, ["1", "½", *(f"$10^{{-{each:.0f}}}$" for each in ticks[2:])])
    ax.set_yticks([], minor=True)
    ax.set_ylim(deepest, -0.25)


def _medians(data: Data, index: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """By switch: medians over runs of the relative residuals, (variant, layer + 1), and their standard errors."""
    runs = [data[f"{index}_{variant}_relative"] for variant in VARIANTS]
    middle = np.stack([np.median(each, axis=0) for each in runs], axis=1)
    error = np.stack([median_error(each) for each in runs], axis=1)
    return dict(zip(SWITCHES, middle, strict=True)), dict(zip(SWITCHES, error, strict=True))


def _judged(data: Data) -> dict[int, list[str]]:
    """The checkpoints whose tokens see each other, by index, with names of their two kinds of weights."""
    # Of causal models the source says nothing.
    names = {index: str(data["names"][index]) for index in np.flatnonzero(~data["causal"]).tolist()}
    return {
        index: [f"{variant} weights" + (f" of {name}" if len(names) > 1 else "") for variant in VARIANTS]
        for index, name in names.items()
    }


def _about(data: Data) -> dict[str, str]:
    """The names of these checkpoints and their rounding floors, as text."""
    models = list(_judged(data))
    return {
        "models": ", ".join(str(data["names"][index]) for index in models),
        "floors": ", ".join(f"{data['floors'][index]:.3g}" for index in models),
    }


def _at_the_end(data: Data, labels: dict[str, str]) -> Measured:
    """Relative residuals at the last layer under the switches that `labels` names, not below the rounding floor."""
    values, errors, where = [], [], []
    for switch, label in labels.items():
        for index, weights in _judged(data).items():
            middle, error = _medians(data, index)
            values += np.maximum(middle[switch][:, -1], data["floors"][index]).tolist()
            errors += error[switch][:, -1].tolist()
            where += [label.format(weights=each) for each in weights]
    clipped = bool(values) and max(values) <= data["floors"].max()
    end = f"≤ {max(values):.2g} (floor)" if clipped else f"{min(values):.4g} … {max(values):.4g}" if values else ""
    numbers = _about(data) | {"end": end}
    return Measured(values, standard_error=errors, where=where, reads=[data["floors"]], numbers=numbers)


def _both_and_alone(data: Data) -> Measured:
    """Relative residuals at the last layer with skips and MLPs; the ranges of those with either alone, as texts."""
    both, *alone = (_at_the_end(data, {switch: "{weights}"}) for switch in ("full", "skip", "mlp"))
    names = {name: each.numbers["end"] for name, each in zip(("skips", "mlps"), alone, strict=True)}
    reads = [*both.reads, *(np.asarray(each.values) for each in alone)]
    return dataclasses.replace(both, numbers={**both.numbers, **names}, reads=reads)


def _with_mlps(data: Data) -> Measured:
    """Log of the relative residual with MLPs over that without, median over texts, by weights and layer."""
    values, errors, where, above = [], [], [], []
    places = [SWITCHES.index(switch) for switch in ("attention", "mlp")]
    for index, weights in _judged(data).items():
        for name, variant in zip(weights, VARIANTS, strict=True):
            pair = np.moveaxis(data[f"{index}_{variant}_relative"][:, places, 1:], 1, 0)  # switch, run, layer
            without, with_mlp = np.log(np.maximum(pair, 1e-300))
            values += np.median(with_mlp - without, axis=0).tolist()
            errors += median_error(with_mlp - without).tolist()
            above += (~(np.median(pair, axis=1).min(axis=0) <= data["floors"][index])).tolist()
            where += [f"{name}, layer {layer + 1}" for layer in range(pair.shape[2])]
    return Measured(
        values, standard_error=errors, where=where, applies=above, reads=[data["floors"]], numbers=_about(data)
    )


AT_THE_END = "at the last layer, medians over texts"
stated = functools.partial(
    published,
    source="dong2021-section4",
    place="figure of relative residuals",
    hypotheses="the source's models are BERT, ALBERT and XLNet; here <models>, and randomly initialised copies of it",
    interval_from=f"our tolerance: {COLLAPSED:.0%}",
)
# At the last layer the residual is at zero, or away from it.
ROWS = (
    stated(
        "trained-attention-collapses",
        "Without skips and MLPs the relative residual of a trained BERT falls to zero.",
        lambda data: _at_the_end(data, {"attention": "{weights}"}),
        at_most(COLLAPSED),
        shown="<end>",
        note=f"{AT_THE_END}; <floors> is the rounding floor",
    ),
    stated(
        "trained-mlp-collapses",
        "Without skips the relative residual of a trained BERT with its MLPs falls to zero too.",
        lambda data: _at_the_end(data, {"mlp": "{weights}"}),
        at_most(COLLAPSED),
        shown="<end>",
        note=f"{AT_THE_END}; <floors> is the rounding floor",
    ),
    published(
        "trained-mlp-slows",
        "MLPs can slow the collapse, by a larger Lipschitz constant.",
        _with_mlps,
        at_least(0),
        needs="some",
        source="dong2021-introduction",
        place="introduction",
        hypotheses="no skips; here <models>, and randomly initialised copies of it; the constant is not measured",
        after_result=True,
        interval_from="the sign of the difference; that some layer is enough was chosen when all were known",
        note="log of the relative residual with MLPs over that without, median over texts, at layers above the "
        "rounding floor",
    ),
    stated(
        "trained-skip-prevents",
        "With skips the relative residual of a trained BERT stays away from zero, with MLPs or without.",
        lambda data: _at_the_end(data, {"skip": "{weights}, skips alone", "full": "{weights}, skips and MLPs"}),
        at_least(COLLAPSED),
        note=AT_THE_END,
    ),
    # The abstract names both parts together; each alone is told in the note.
    published(
        "trained-stops",
        "Skip connections and MLPs stop the output from degenerating.",
        _both_and_alone,
        at_least(COLLAPSED),
        source="dong2021",
        place="abstract",
        hypotheses="both together; here <models>, and randomly initialised copies of it",
        after_result=True,
        interval_from=f"our tolerance: {COLLAPSED:.0%}; that both together are judged was chosen when each alone was "
        f"known",
        note=f"{AT_THE_END}; skips alone do too, by <skips>, and MLPs alone do not, by <mlps>: of them the text says "
        f"that "
        "they slow it (trained-mlp-slows)",
    ),
    published(
        "trained-skip-obstructs",
        "Residual connections generically obstruct the collapse of rank in transformers such as BERT, without the "
        "MLPs.",
        lambda data: _at_the_end(data, {"skip": "{weights}, skips alone"}),
        at_least(COLLAPSED),
        source="cirrincione2026",
        place="abstracts of the listing and in version 1",
        hypotheses="the source's model is BERT-base; here <models>, and randomly initialised copies of it",
        interval_from=f"our tolerance: {COLLAPSED:.0%} of the tokens' size",
        note=f"relative residual {AT_THE_END}; generically is said of almost all weights, and of two sets of weights "
        f"of one "
        "model here",
    ),
)
