"""The optimal scale and attention as it is: queries shared by a row, a trained model's rows, and scales in use."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import experiments.lib.figure
from experiments.figures._packaged import trained_checkpoint
from experiments.figures.models._model_scales import USED, layer_inputs, layer_logits, row_scales
from experiments.ledger import Measured, published
from experiments.lib import sentences, style
from experiments.lib.figure import About
from rc_jax import pretrained, scale

ABOUT = About(
    title="Scales in use, against the scale of most gradient",
    caption=(
        "The top left panel shows the annealed optimum of rows whose scores share their query, as they do in "
        "attention: it is lower, and bounded by √(d/2). The top right panel shows the standard deviation of each row's "
        "logits in a trained 6-layer BERT (all-MiniLM-L6-v2, on docstrings) and in a randomly initialised copy. Each "
        "head has a dot (median) and a bar (quartiles), beside the optimum of the rows themselves. The bottom left "
        "panel shows the share of a row's largest possible gradient at its scale. The bottom right panel shows factors "
        "on cosines in published models over the annealed and the typical optimum for the n and d of one plausible "
        "case each. The optima are those of random directions, which trained ones are not."
    ),
    formula="E_q e^{α²‖q‖²/d} = (1 − 2α²/d)^(−d/2);   implied α = std of a row's logits;   scale / α*(n, d)",
    topic="scale",
    minutes={"smoke": 0.3, "quick": 0.8, "full": 5},
)
VARIANTS = ("trained", "initial")
FACTOR = 2.0  # near another scale
DIMS = (8, 32, 64, 128)
QUARTILES = (0.25, 0.5, 0.75)
Data = Mapping[str, np.ndarray]


class Spec(experiments.lib.figure.Spec):
    """Texts of `tokens` tokens; `gaussian_rows` simulated rows; `samples` for typical optima (0: none)."""

    texts: int = 12
    tokens: int = 64
    gaussian_rows: int = 8192
    samples: int = 256


PRESETS = {
    "smoke": Spec(texts=2, tokens=16, gaussian_rows=512, samples=0),
    "quick": Spec(),
    "full": Spec(texts=64, tokens=128, gaussian_rows=131_072, samples=16_384),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Shared-query optima; quartiles over rows by layer and head, trained and initial; optima of models in use."""
    trained = trained_checkpoint(spec.dtype)
    key = jax.random.key(spec.seed)
    initial = pretrained.random_like(jax.random.fold_in(key, 0), trained)
    ids = sentences.token_ids(trained, spec.texts, spec.tokens, spread=True)
    data: dict[str, np.ndarray] = {"tokens": np.asarray(spec.tokens), "rows": np.asarray(ids.size)}

    # Optima against n for some d, both averages over the shared query.
    data["n"] = n = 2.0 ** np.arange(1, 81)
    dims = np.array(DIMS, float)[:, None]
    data["independent"] = np.asarray(scale.optimal_scale(n))
    data["row"] = np.asarray(scale.shared_query_scale(n, dims))
    data["all"] = np.asarray(scale.shared_query_scale(n, dims, "all"))

    # The annealed and the typical optimum of every published case.
    data["used"] = np.array([used.scale for used in USED])
    data["used_n"] = np.array([used.n for used in USED], float)
    data["used_dim"] = np.array([used.dim for used in USED], float)
    data["used_annealed"] = np.asarray(scale.optimal_scale(data["used_n"], data["used_dim"]))
    if spec.samples:
        draws = jax.random.fold_in(key, 1)
        typical = [scale.typical_optimum(draws, used.n, float(used.dim), spec.samples) for used in USED]
        data["used_typical"] = np.array([optimum.scale for optimum in typical])

    # The rows of the model, before and after training, beside rows of normal scores.
    for variant, checkpoint in zip(VARIANTS, (trained, initial), strict=True):
        x = jax.vmap(checkpoint.embed)(jnp.asarray(ids))
        states = layer_inputs(checkpoint.params, x, checkpoint.spec)
        logits = layer_logits(checkpoint.params.attention, states, checkpoint.spec.attention)
        data |= _quartiles(variant, np.asarray(logits))
    draws = jax.random.fold_in(key, 2)
    rows = row_scales(np.asarray(jax.random.normal(draws, (spec.gaussian_rows, spec.tokens))))
    data["gaussian_best"] = np.quantile(rows["best"], QUARTILES)
    data["gaussian_typical"] = np.asarray(scale.typical_scale(draws, spec.tokens, samples=spec.gaussian_rows))
    data["gaussian_annealed"] = np.asarray(scale.optimal_scale(float(spec.tokens)))
    return data


def _quartiles(variant: str, logits: np.ndarray) -> dict[str, np.ndarray]:
    """Quartiles of `row_scales` over rows and texts: (quartile, layer, head), and `…_layer` over heads too.

    The logits' axes are text, layer, head, row and key.
    """
    data: dict[str, np.ndarray] = {}
    for name, value in row_scales(logits.reshape(-1, logits.shape[-1])).items():
        value = value.reshape(logits.shape[:-1])
        data[f"{variant}_{name}"] = np.quantile(value, QUARTILES, axis=(0, 3))
        data[f"{variant}_{name}_layer"] = np.quantile(value, QUARTILES, axis=(0, 2, 3))
    return data


def plot(data: Data) -> Figure:
    """Shared queries; implied scales; share of the gradient; scales in use."""
    drawing, panels = style.figure(columns=2, rows=2, width=6.2, height=4.4)
    for ax, fill in zip(panels, (_plot_shared, _plot_implied, _plot_share, _plot_used), strict=True):
        fill(ax, data)
    return drawing


def _plot_shared(ax: Axes, data: Data) -> None:
    n = data["n"]
    ax.plot(n, data["independent"], color=style.colour("theory"), label="independent scores")
    for dim, row, both, color in zip(DIMS, data["row"], data["all"], style.sequence(len(DIMS)), strict=True):
        ax.plot(n, row, color=color, label=f"d = {dim}")
        ax.plot(n, both, color=color, linestyle=style.DASHES[1], linewidth=1.2)
        if dim <= 32:
            ax.annotate(
                "√(d/2)", (n[-1], (dim / 2) ** 0.5), color=color, fontsize=9, ha="right", va="bottom",
                xytext=(0, 2), textcoords="offset points",
            )  # fmt: skip
            ax.plot(n[[0, -1]], [(dim / 2) ** 0.5] * 2, color=color, linestyle=style.DASHES[2], linewidth=1)
    ax.plot([], [], color=style.colour("reference"), linestyle=style.DASHES[1], label="both sums averaged")
    title = "Shared query: a smaller, bounded optimum"
    style.panel(ax, "n, number of keys", "α*, factor on q·k/√d", title, log="x", legend="below", columns=3)


def _plot_implied(ax: Axes, data: Data) -> None:
    _heads(ax, data, "implied")
    low, middle, high = data["trained_best_layer"]
    layers = np.arange(1, middle.size + 1)
    ax.errorbar(
        layers, middle, [middle - low, high - middle], fmt="D", color=style.colour("full"), markerfacecolor="none",
        capsize=3, label="own optimum of trained rows",
    )  # fmt: skip
    for name, meaning, dash in (("annealed", "theory", 1), ("typical", "corrected", 3)):
        value = float(data[f"gaussian_{name}"])
        ax.axhline(
            value, color=style.colour(meaning), linestyle=style.DASHES[dash], linewidth=1.1,
            label=f"{name}, normal scores: {value:.2f}",
        )  # fmt: skip
    title = f"Implied scale, head by head, n = {int(data['tokens'])}"
    style.panel(ax, "layer", "standard deviation of a row's logits", title, log="y", legend="below", columns=2)


def _plot_share(ax: Axes, data: Data) -> None:
    _heads(ax, data, "share")
    ax.set_ylim(0, 1.05)
    title = "Share of a row's largest gradient"
    style.panel(ax, "layer", "gradient of softmax / its maximum over α", title, legend="below", columns=2)


def _heads(ax: Axes, data: Data, name: str) -> None:
    """Median and quartiles over rows for every head, side by side within its layer."""
    for variant, meaning, shift, marker in (("trained", "trained", -0.2, "o"), ("initial", "random", 0.2, "s")):
        low, middle, high = data[f"{variant}_{name}"]
        layers = np.arange(1, middle.shape[0] + 1)
        x = layers[:, None] + shift + np.linspace(-0.15, 0.15, middle.shape[1])[None]
        label = "trained heads" if variant == "trained" else "random initialisation"
        ax.vlines(x.ravel(), low.ravel(), high.ravel(), color=style.colour(meaning), linewidth=1, alpha=0.6)
        ax.plot(x.ravel(), middle.ravel(), marker, color=style.colour(meaning), markersize=3.5, label=label)


def _plot_used(ax: Axes, data: Data) -> None:
    # One row for each published case, from the top.
    place = np.arange(len(USED))[::-1]
    ax.axvspan(1 / FACTOR, FACTOR, color=style.colour("reference"), alpha=0.15, linewidth=0)
    ax.axvline(1, color=style.colour("reference"), linewidth=1)
    for name, meaning, marker, label in (
        ("annealed", "measured", "o", "over the annealed optimum"),
        ("typical", "corrected", "^", "over the typical optimum"),
    ):
        if f"used_{name}" not in data:
            continue
        ratio = data["used"] / data[f"used_{name}"]
        ax.plot(ratio, place, marker, color=style.colour(meaning), label=label, markersize=6)
    title = "Scales in use\n(shaded: within a factor of 2)"
    style.panel(ax, "scale in use / optimum for (n, d)", "", title, log="x", legend="below", columns=2)
    ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set_yticks(place, [f"{used.name}\nn = {used.n}, d = {used.dim}" for used in USED], fontsize=9)


# What Su's article says that the optimum explains: the factors of additive margins and of SimCSE.
EXPLAINED = [index for index, used in enumerate(USED) if used.name.startswith(("SimCSE", "AM-Softmax"))]
SOURCE_DIM = 128
ARTICLE_KEYS = 40.0 * np.arange(1, 501)  # the numbers of keys in the article's programs


def _explained(data: Data) -> Measured:
    """The factor in use over the optimum in the dimension that the article takes; the note has the model's own."""
    used, n = data["used"][EXPLAINED], data["used_n"][EXPLAINED]
    own = used / data["used_annealed"][EXPLAINED]
    over = used[:, None] / np.asarray(scale.optimal_scale(ARTICLE_KEYS, float(SOURCE_DIM)))
    return Measured(
        used / np.asarray(scale.optimal_scale(n, float(SOURCE_DIM))),
        where=[USED[index].name for index in EXPLAINED],
        reads=[own],
        numbers={
            "own": ", ".join(f"{ratio:.2f}" for ratio in own),
            "inside": ((over >= 1 / FACTOR) & (over <= FACTOR)).mean(),
            "least": over.min(),
            "most": over.max(),
        },
    )


ROWS = (
    published(
        "scales-in-use",
        "The optimum for cosines explains why models such as AM-Softmax and SimCSE multiply them by about 30.",
        _explained,
        (1 / FACTOR, FACTOR),
        formula=True,
        source="su2023scale",
        place="section on cosines",
        hypotheses=f"the source computes 25 to 35 at $d={SOURCE_DIM}$; here the optimum in its $d$ for each model's "
        "number of keys, which is our choice: "
        + ", ".join(f"{USED[index].name}: {USED[index].n}" for index in EXPLAINED),
        after_result=True,
        interval_from=f"our tolerance: a factor of {FACTOR:g}; that the source's $d$ decides was chosen when the "
        "result in the models' own was known",
        note="measured: the factor in use over the annealed optimum; in the models' own dimensions, "
        f"{' and '.join(str(USED[index].dim) for index in EXPLAINED)}, it is <own>; in the "
        r"article's $d$ it is <least:.2f> … <most:.2f> over $n=40\thinspace\ldots\thinspace20000$ in steps of 40, "
        "within the tolerance at <inside:.0%> of them for both factors, so that the criterion can hardly fail",
    ),
)
