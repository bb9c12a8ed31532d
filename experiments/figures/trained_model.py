"""A real trained BERT against its own random initialisation: collapse without skips, and how sparse its rows are."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import figure, ledger, sentences, style
from experiments.figure import About
from experiments.figures._packaged import trained_checkpoint
from experiments.ledger import Claim
from rc_jax import attention, collapse, network, pretrained, sparsity

ABOUT = About(
    title="A trained model, with its skips and MLPs taken away",
    caption=(
        "The 6-layer BERT all-MiniLM-L6-v2 on docstrings of Python's standard library, and its twins drawn as BERT is "
        "before training. The switches drop skips and MLPs (each MLP with its LayerNorm); the other LayerNorms stay as "
        "in the checkpoint, and nothing is retrained. Residuals in DCL21's composite norm, in float64; bands are the "
        "10 % and 90 % quantiles over texts and initialisations, and a curve ends where it meets the rounding floor. "
        "Every dot of the other panels is one head, averaged over rows and texts."
    ),
    formula="‖res(X^l)‖₁,∞ / ‖X^l‖₁,∞;   S = E|p| / √E p², e^(−γ²/2) with γ = std of logits;   −Σ p log p / log n",
    minutes={"smoke": 0.2, "quick": 0.6, "full": 12},
)

SWITCHES = ("attention", "skip", "mlp", "full")  # named by what is added to attention
LABELS = {"attention": "attention only", "skip": "+ skip", "mlp": "+ MLP", "full": "+ skip + MLP (the model)"}
VARIANTS = ("trained", "initial")
NORMS = ("1inf", "frobenius")

# Fixed before anything was measured. DCL21's figure has a linear axis that starts at 0: what its reader sees as
# "rapid collapse, a zero residual" is at most a twentieth; "prevented" is at least half of what the embeddings had.
COLLAPSED, PREVENTED = 0.05, 0.5
ROW_TOLERANCE = 0.1  # relative, of a head's mean S against its mean e^(−γ²/2)
CUBE = (2.5, 3.5)  # the exponent per layer rounds to 3


@dataclasses.dataclass(frozen=True)
class Spec(figure.Spec):
    """Texts of `tokens` tokens each; the random twins are drawn `initialisations` times, on the same texts."""

    dtype: str = "float64"
    texts: int = 24
    tokens: int = 64
    initialisations: int = 2


PRESETS = {
    "smoke": Spec(texts=3, tokens=16, initialisations=1),
    "quick": Spec(),
    "full": Spec(texts=128, tokens=128, initialisations=8),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Relative residuals (norm, switch, run, layer + 1); rows' sparsity, entropy and prediction (run, layer, head)."""
    trained = trained_checkpoint(spec.dtype)
    ids = sentences.token_ids(trained, spec.texts, spec.tokens, spread=True)
    key = jax.random.fold_in(jax.random.key(spec.seed), 0)
    found: dict[str, list[dict[str, np.ndarray]]] = {"trained": [_measure(trained, ids)], "initial": []}
    for index in range(spec.initialisations):
        twin = pretrained.random_like(jax.random.fold_in(key, index), trained)
        found["initial"].append(_measure(twin, ids))
    data = {
        f"{variant}_{name}": np.concatenate([run[name] for run in runs], axis=axis)
        for variant, runs in found.items()
        for name, axis in (("relative", 2), ("log_residual", 0), ("sparsity", 0), ("entropy", 0), ("predicted", 0))
    }
    floor = np.sqrt(trained.spec.attention.d_model) * np.finfo(spec.dtype).eps
    return data | {"floor": np.asarray(floor), "texts": np.asarray(len(ids)), "tokens": np.asarray(spec.tokens)}


def _measure(checkpoint: pretrained.Checkpoint, ids: np.ndarray) -> dict[str, np.ndarray]:
    """All observables of one set of parameters on all texts."""
    x = jax.vmap(checkpoint.embed)(jnp.asarray(ids))
    params, full = checkpoint.params, checkpoint.spec
    variants = (
        dataclasses.replace(full, skip="skip" in on, mlp=full.mlp if "mlp" in on else None)
        for on in ((), ("skip",), ("mlp",), ("skip", "mlp"))
    )
    relative = np.stack([np.asarray(_relative_residuals(params, x, variant)) for variant in variants], axis=1)
    rows = {name: np.asarray(value)[None] for name, value in _row_statistics(params, x, full).items()}
    bare = dataclasses.replace(full, skip=False, mlp=None, norm=None)
    return rows | {"relative": relative, "log_residual": np.asarray(_log_residuals(params, x, bare))}


@functools.partial(jax.jit, static_argnames="spec")
def _relative_residuals(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> jax.Array:
    """‖res(X^l)‖/‖X^l‖ in both norms: (norm, text, layer + 1)."""

    def ratios(state: jax.Array) -> jax.Array:
        rest = collapse.residual(state)
        return jnp.stack([size(rest) / size(state) for size in (collapse.norm_1inf, collapse.frobenius)])

    def one(tokens: jax.Array) -> jax.Array:
        return jax.vmap(ratios, out_axes=1)(network.hidden_states(params, tokens, spec))

    return jnp.moveaxis(jax.lax.map(one, x, batch_size=4), 1, 0)


@functools.partial(jax.jit, static_argnames="spec")
def _log_residuals(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> jax.Array:
    """Log ‖res(X^l)‖_F in exact arithmetic: (text, layer + 1)."""
    return jax.lax.map(lambda tokens: collapse.log_residuals(params, tokens, spec), x, batch_size=4)


@functools.partial(jax.jit, static_argnames="spec")
def _row_statistics(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> dict[str, jax.Array]:
    """Means over rows and texts of S, of entropy/log n and of e^(−γ²/2), in the whole model: (layer, head) each."""

    def layer(weights: attention.AttentionParams, state: jax.Array) -> dict[str, jax.Array]:
        logits = attention.scores(weights, state, spec.attention)
        rows = jax.nn.softmax(logits, axis=-1)
        surprise = jnp.log(jnp.where(rows > 0, rows, 1))
        each = {
            "sparsity": sparsity.sparsity(rows),
            "entropy": -jnp.sum(rows * surprise, axis=-1) / np.log(x.shape[1]),
            "predicted": jnp.exp(-jnp.var(logits, axis=-1) / 2),
        }
        return jax.tree.map(lambda value: value.mean(axis=-1), each)

    def one(tokens: jax.Array) -> dict[str, jax.Array]:
        return jax.vmap(layer)(params.attention, network.hidden_states(params, tokens, spec)[:-1])

    return jax.tree.map(lambda value: value.mean(axis=0), jax.lax.map(one, x, batch_size=4))


def plot(data: dict[str, np.ndarray]) -> Figure:
    """Collapse by layer; sparsity and entropy by layer; sparsity against what Gaussian logits would give."""
    drawing, panels = style.figure(columns=2, rows=2)
    _plot_residuals(panels[0], data)
    _plot_against_theory(panels[1], data)
    _plot_heads(panels[2], data, "sparsity", "sparsity S of a row (1: uniform)", "Sparsity, head by head")
    least = float(data["tokens"]) ** -0.5
    style.reference(panels[2], y=least, text="all on one token, 1/√n")
    _plot_heads(panels[3], data, "entropy", "entropy of a row / log n (1: uniform)", "Entropy, head by head")
    return drawing


def _plot_residuals(ax: Axes, data: dict[str, np.ndarray]) -> None:
    floor = float(data["floor"])
    for position, switch in enumerate(SWITCHES):
        for variant, dash in zip(VARIANTS, ("-", style.DASHES[1]), strict=True):
            low, middle, high = np.quantile(data[f"{variant}_relative"][0, position], [0.1, 0.5, 0.9], axis=0)
            end = int(np.argmax(middle <= floor)) if (middle <= floor).any() else middle.size
            layers, color = np.arange(middle.size), style.colour(switch)
            band = np.maximum(low[:end], floor), high[:end]
            ax.fill_between(layers[:end], *band, color=color, alpha=0.18, linewidth=0)
            label = LABELS[switch] if variant == "trained" else None
            marker = style.MARKERS[position]
            ax.plot(layers[:end], middle[:end], color=color, linestyle=dash, label=label, marker=marker)
            if end < middle.size:  # lost in rounding by this layer
                ax.plot(
                    layers[end - 1 : end + 1], [middle[end - 1], floor], color=color, linestyle=style.DASHES[2],
                    marker="v", markevery=[1], markerfacecolor="none",
                )  # fmt: skip
    ink = style.colour("theory")
    for variant, dash in zip(("trained", "random initialisation"), ("-", style.DASHES[1]), strict=True):
        ax.plot([], [], color=ink, linestyle=dash, label=variant)
    ax.set_yscale("log")
    ax.set_ylim(floor / 10, 3)
    style.reference(ax, y=floor)
    ax.annotate("▿ lost below the\nrounding floor", (0, floor), xytext=(0, 4), textcoords="offset points",
                fontsize=8.5, color=style.colour("reference"))  # fmt: skip
    style.labels(ax, "layer", "relative residual ‖res(X)‖₁,∞ / ‖X‖₁,∞", "Collapse without skips")
    style.legend(ax, "below", columns=3)


def _plot_heads(ax: Axes, data: dict[str, np.ndarray], name: str, y: str, title: str) -> None:
    for variant, meaning, shift in (("initial", "random", 0.17), ("trained", "trained", -0.17)):
        values = data[f"{variant}_{name}"]
        layers = np.arange(1, values.shape[1] + 1)
        spread = np.linspace(-0.12, 0.12, values.shape[2])
        for run in values:
            x = layers[:, None] + shift + spread[None]
            marker = "o" if variant == "trained" else "s"
            ax.scatter(x, run, s=14, marker=marker, color=style.colour(meaning), alpha=0.75, linewidths=0)
        middle = np.median(values, axis=(0, 2))
        label = "trained" if variant == "trained" else "random initialisation"
        ax.plot(layers + shift, middle, color=style.colour(meaning), label=f"{label} (line: median)")
    ax.set_ylim(-0.03, 1.08)
    style.labels(ax, "layer", y, title)
    style.legend(ax, "below", columns=2)


def _plot_against_theory(ax: Axes, data: dict[str, np.ndarray]) -> None:
    for variant, meaning, marker in (("initial", "random", "s"), ("trained", "trained", "o")):
        gamma = _spread(data[f"{variant}_predicted"])
        label = "trained heads" if variant == "trained" else "random initialisation"
        color = style.colour(meaning)
        ax.scatter(
            gamma, data[f"{variant}_sparsity"], s=18, marker=marker, color=color, alpha=0.75, linewidths=0, label=label
        )
    grid = np.linspace(0, max(2.0, float(gamma.max()) * 1.05), 200)
    ax.plot(grid, np.exp(-(grid**2) / 2), color=style.colour("theory"), label="Gaussian logits, e^(−γ²/2)")
    style.reference(ax, y=float(data["tokens"]) ** -0.5, text="all on one token, 1/√n")
    ax.set_ylim(-0.03, 1.08)
    style.labels(
        ax,
        "spread γ of a row's logits (standard deviation)",
        "sparsity S of a row (1: uniform)",
        "Sparsity against theory",
    )
    style.legend(ax, "upper right")


def claims(data: dict[str, np.ndarray]) -> list[Claim]:
    """DCL21's figure of trained and initial models, its cube, and Su9889's sparsity of softmax."""
    source = "DCL21, section 4 and the figure of relative residuals"
    last = {
        switch: np.array([np.median(data[f"{v}_relative"][0, i, :, -1]) for v in VARIANTS])
        for i, switch in enumerate(SWITCHES)
    }
    start = np.array([np.median(data[f"{v}_relative"][0, 0, :, 0]) for v in VARIANTS])
    zero, kept = f"≤ {COLLAPSED:g}", f"≥ {PREVENTED:g} of the embeddings'"
    floor = float(data["floor"])
    noise = f"{floor:.3g} is the rounding floor"
    return [
        ledger.on_range(
            "trained-attention-collapses", "attention only: relative residual at the last layer is zero", source,
            zero, np.maximum(last["attention"], floor), last["attention"] <= COLLAPSED, VARIANTS, note=noise,
        ),
        ledger.on_range(
            "trained-mlp-collapses", "MLPs without skips do not prevent the collapse", source,
            zero, np.maximum(last["mlp"], floor), last["mlp"] <= COLLAPSED, VARIANTS, note=noise,
        ),
        _mlp_slows(data),
        ledger.on_range(
            "trained-skip-prevents", "skips alone prevent the collapse", source,
            kept, last["skip"] / start, last["skip"] >= PREVENTED * start, VARIANTS,
        ),
        ledger.on_range(
            "trained-full-prevents", "the whole model does not collapse", source,
            kept, last["full"] / start, last["full"] >= PREVENTED * start, VARIANTS,
        ),
        *(_cube(data, variant) for variant in VARIANTS),
        *(_gaussian_rows(data, variant) for variant in VARIANTS),
    ]  # fmt: skip


def _mlp_slows(data: dict[str, np.ndarray]) -> Claim:
    """Layer by layer, where both residuals are above the floor."""
    ratios, where = [], []
    for variant in VARIANTS:
        middle = np.median(data[f"{variant}_relative"][0], axis=1)
        alone, with_mlp = middle[SWITCHES.index("attention"), 1:], middle[SWITCHES.index("mlp"), 1:]
        measured = (alone > data["floor"]) & (with_mlp > data["floor"])
        ratios += list(np.where(measured, with_mlp / alone, np.nan))
        where += [f"{variant} layer {layer + 1}" for layer in range(alone.size)]
    ratio = np.array(ratios)
    return ledger.on_range(
        "trained-mlp-slows", "without skips, the residual with MLPs is larger than without", "DCL21, on MLPs",
        "ratio > 1", ratio, ratio > 1, where,
        note="layers at the rounding floor are not counted",
    )  # fmt: skip


def _cube(data: dict[str, np.ndarray], variant: str) -> Claim:
    """The factor by which the fall of log ‖res‖ grows at the last layer; attention only, LayerNorm off, exact."""
    steps = np.diff(data[f"{variant}_log_residual"], axis=1)
    factor = steps[:, -1] / steps[:, -2]
    deepest = float(np.median(data[f"{variant}_log_residual"][:, -1]))
    return ledger.within(
        f"{variant}-cube", f"{variant} weights, attention only: the fall of log ‖res‖ triples at the last layer",
        "DCL21, Theorem 2.2", 3, float(np.median(factor)), *CUBE,
        note=f"LayerNorm off, exact arithmetic; median over texts; log ‖res‖ = {deepest:.0f} after the last layer",
    )  # fmt: skip


def _gaussian_rows(data: dict[str, np.ndarray], variant: str) -> Claim:
    """Head by head, mean S of the rows against the mean of e^(−γ²/2) of the same rows; heads in the order of γ."""
    predicted = data[f"{variant}_predicted"].ravel()
    order = np.argsort(-predicted)
    ratio = (data[f"{variant}_sparsity"].ravel() / predicted)[order]
    spread = [f"γ = {gamma:.2f}" for gamma in _spread(predicted[order])]
    return ledger.on_range(
        f"{variant}-gaussian-rows", f"{variant} attention rows have S = e^(−γ²/2)",
        "Su Jianlin, kexue.fm/archives/9889", f"ratio 1 ± {ROW_TOLERANCE:g}",
        ratio, np.abs(ratio - 1) <= ROW_TOLERANCE, spread, note="a point is a head",
    )  # fmt: skip


def _spread(predicted: np.ndarray) -> np.ndarray:
    """The γ at which e^(−γ²/2) takes these values."""
    return np.sqrt(-2 * np.log(predicted))
