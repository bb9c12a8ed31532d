"""A real trained BERT against its own random initialisation: how sparse its rows are, and the cube without skips."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.figures._packaged import Measures, beside_initial, log_residuals, trained_checkpoint
from experiments.ledger import Measured, published
from experiments.lib import figure, sentences, style
from experiments.lib.figure import About, Data
from rc_jax import attention, network, pretrained, sparsity

ABOUT = About(
    title="A trained model's attention rows, and its cube",
    caption=(
        "The 6-layer BERT all-MiniLM-L6-v2 reads docstrings of Python's standard library, beside copies drawn as BERT "
        "is before training. Sparsity is that of the whole model; every dot is one head, averaged over rows and "
        "texts. In the last panel skips, MLPs and LayerNorms are off, in cancellation-free arithmetic and float64, "
        "and the band reaches from the 10 % to the 90 % quantile over texts and initialisations. The same model's "
        "relative residuals with parts taken away are in the figure of real models."
    ),
    formula="S = E|p| / √E p², e^(−γ²/2) with γ = std of logits;   log ‖res(X^l)‖_F ∝ 3^l",
    topic="models",
    minutes={"smoke": 0.15, "quick": 0.35, "full": 6},
    core=True,
)

VARIANTS = ("trained", "initial")
LOOKS = {"initial": ("random", "s", "random initialisation"), "trained": ("trained", "o", "trained")}

# Fixed before anything was measured.
CUBE = (2.5, 3.5)  # the exponent per layer rounds to 3


class Spec(figure.Spec):
    """Texts of `tokens` tokens each, the same for the model and for `initialisations` randomly initialised copies."""

    dtype: str = "float64"
    texts: int = 24
    tokens: int = 64
    initialisations: int = 2


PRESETS = {
    "smoke": Spec(texts=4, tokens=16, initialisations=1),
    "quick": Spec(),
    "full": Spec(texts=128, tokens=128, initialisations=8),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Rows' sparsity and its prediction (run, layer, head); log residuals of bare attention (run, layer + 1)."""
    trained = trained_checkpoint(spec.dtype)
    ids = sentences.token_ids(trained, spec.texts, spec.tokens, spread=True)
    measures = beside_initial(trained, functools.partial(_measure, ids=ids), spec.seed, spec.initialisations)
    return measures | {"tokens": np.asarray(spec.tokens)}


def _measure(checkpoint: pretrained.Checkpoint, ids: np.ndarray) -> Measures:
    """All observables of one set of parameters on all texts."""
    x = jax.vmap(checkpoint.embed)(jnp.asarray(ids))
    rows = _row_statistics(checkpoint.params, x, checkpoint.spec)
    bare = dataclasses.replace(checkpoint.spec, skip=False, mlp=None, norm=None)
    logs = np.asarray(log_residuals(checkpoint.params, x, bare))
    return {name: np.asarray(value)[None] for name, value in rows.items()} | {"log_residual": logs}


@functools.partial(jax.jit, static_argnames="spec")
def _row_statistics(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> dict[str, jax.Array]:
    """Means over rows and texts of S and of e^(−γ²/2), in the whole model: (layer, head) each."""

    def layer(weights: attention.AttentionParams, state: jax.Array) -> dict[str, jax.Array]:
        logits = attention.scores(weights, state, spec.attention)
        measured = sparsity.sparsity(jax.nn.softmax(logits, axis=-1))
        predicted = jnp.exp(-jnp.var(logits, axis=-1) / 2)
        return {"sparsity": measured.mean(axis=-1), "predicted": predicted.mean(axis=-1)}

    def one(tokens: jax.Array) -> dict[str, jax.Array]:
        return jax.vmap(layer)(params.attention, network.hidden_states(params, tokens, spec)[:-1])

    return jax.tree.map(lambda value: value.mean(axis=0), jax.lax.map(one, x, batch_size=4))


def plot(data: dict[str, np.ndarray]) -> Figure:
    """Sparsity by layer; sparsity against what Gaussian logits would give; the fall of pure attention."""
    drawing, panels = style.figure(columns=3, width=5.2)
    for ax, fill in zip(panels, (_plot_heads, _plot_against_theory, _plot_falls), strict=True):
        fill(ax, data)
    return drawing


def _plot_heads(ax: Axes, data: dict[str, np.ndarray]) -> None:
    for (variant, (meaning, marker, label)), shift in zip(LOOKS.items(), (0.17, -0.17), strict=True):
        values = data[f"{variant}_sparsity"]
        layers = np.arange(1, values.shape[1] + 1) + shift
        x = layers[:, None] + np.linspace(-0.12, 0.12, values.shape[2])[None]
        color = style.colour(meaning)
        for run in values:
            ax.scatter(x, run, s=14, marker=marker, color=color, alpha=0.75, linewidths=0)
        ax.plot(layers, np.median(values, axis=(0, 2)), color=color, label=f"{label} (line: median)")
    ax.set_ylim(-0.03, 1.08)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.reference(ax, y=float(data["tokens"]) ** -0.5, text="all on one token, 1/√n")
    style.panel(ax, "layer", "sparsity S of a row (1: uniform)", "Sparsity, head by head", legend="below", columns=2)


def _plot_against_theory(ax: Axes, data: dict[str, np.ndarray]) -> None:
    gamma = np.zeros(1)
    for variant, (meaning, marker, label) in LOOKS.items():
        gamma, color = _spread(data[f"{variant}_predicted"]), style.colour(meaning)
        heads = f"{label}, by head"
        sparsities = data[f"{variant}_sparsity"]
        ax.scatter(gamma, sparsities, s=18, marker=marker, color=color, alpha=0.75, linewidths=0, label=heads)
    grid = np.linspace(0, max(2.0, float(gamma.max()) * 1.05), 200)
    ax.plot(grid, np.exp(-(grid**2) / 2), color=style.colour("theory"), label="Gaussian logits, e^(−γ²/2)")
    style.reference(ax, y=float(data["tokens"]) ** -0.5, text="all on one token, 1/√n")
    ax.set_ylim(-0.03, 1.08)
    x, y = "spread γ of a row's logits (standard deviation)", "sparsity S of a row (1: uniform)"
    style.panel(ax, x, y, "Sparsity against theory", legend="upper right")


def _plot_falls(ax: Axes, data: dict[str, np.ndarray]) -> None:
    for variant, (meaning, _, label) in LOOKS.items():
        falls = -np.diff(data[f"{variant}_log_residual"], axis=1)
        layers = np.arange(1, falls.shape[1] + 1)
        low, middle, high = np.quantile(falls, [0.1, 0.5, 0.9], axis=0)
        style.bands(ax, layers, low, middle, high, meaning=meaning, label=label, marker="o")
        cube = middle[-1] * 3.0 ** (layers - layers[-1])
        name = "three times the fall before" if variant == "trained" else None
        ax.plot(layers, cube, color=style.colour("theory"), linestyle=style.DASHES[2], linewidth=1.2, label=name)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    y, title = "fall of log ‖res(X)‖_F in a layer (nats)", "Attention only, LayerNorm off"
    style.panel(ax, "layer", y, title, log="y", legend="lower right")


def _spread(predicted: np.ndarray) -> np.ndarray:
    """The γ at which e^(−γ²/2) takes these values."""
    return np.sqrt(-2 * np.log(predicted))


def _factors(data: Data) -> Measured:
    """The fall in the last layer over that before, medians over texts, by kind of weights."""
    logs = [data[f"{variant}_log_residual"] for variant in VARIANTS]
    falls = [np.diff(each, axis=1) for each in logs]
    factors = [fall[:, -1] / fall[:, -2] for fall in falls]
    return Measured(
        [np.median(factor) for factor in factors],
        standard_error=[1.2533 * factor.std(ddof=1) / np.sqrt(factor.size) for factor in factors],
        where=[f"{variant} weights" for variant in VARIANTS],
        numbers={"deepest": ", ".join(f"{np.median(each[:, -1]):.0f}" for each in logs)},
    )


ROWS = (
    published(
        "trained-cube",
        r"Without skips and MLPs every layer cubes the bound on the residual, so that $\log\thinspace\lVert "
        r"\mathrm{res}\rVert$ falls doubly exponentially.",
        _factors,
        CUBE,
        formula=True,
        source="dong2021-theorem",
        place="theorem 2.2, as others restate it",
        hypotheses="softmax attention, no mask, no positions inside; here one checkpoint, LayerNorm off",
        interval_from="our tolerance: the factor rounds to 3",
        note="the fall in the last layer over that before, medians over texts; the theorem is an upper bound; "
        r"$\log\thinspace\lVert \mathrm{res}\rVert$ ends at <deepest>",
    ),
)
