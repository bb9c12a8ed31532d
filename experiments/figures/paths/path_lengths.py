"""Sums over paths: what paths of each length add to the output, and what they leave of the tokens' differences."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.figures._medians import median_error
from experiments.figures._samples import draw
from experiments.ledger import Measured, at_most, published
from experiments.lib import figure, sentences, style
from experiments.lib.figure import About
from rc_jax import attention, collapse, network, pretrained
from rc_jax.collapse import draw_paths

ABOUT = About(
    title="Paths by length",
    caption=(
        "An attention network with skip connections is a sum over paths, with the attention matrices of the forward "
        "pass. The panels show the number of paths of each length, and what all paths of a length together add to the "
        "output and to the differences between tokens. They also show how nearly equal the tokens are in the sum of a "
        "length and in single paths drawn at random. The weights are Gaussian (bands: 5–95 % of initialisations), or "
        "those of all-MiniLM-L6-v2 before and after training (over texts; skips on, MLPs and LayerNorms off, so this "
        "is not the model itself). The last panel has the same Gaussian layers without skips. The arithmetic is exact."
    ),
    formula="X^L = Σ_k Y_k,   Y_k ← Y_k + Σ_h P_h Y_(k−1) W_h,   C(L,k) H^k paths in Y_k",
    topic="paths",
    minutes={"smoke": 0.4, "quick": 1.38, "full": 6.0},
    core=True,
)

LEVELS = (0.05, 0.5, 0.95)
VARIANTS = ("random", "initial", "trained")
JUDGED = ("path_relative", "sum_relative")
CURVES = ("share", "residual_share", *JUDGED)
LABELS = {"random": "Gaussian weights", "initial": "BERT, untrained", "trained": "BERT, trained"}
MEANING = {"random": "random", "initial": "mlp", "trained": "trained"}
MARKER = {"random": "s", "initial": "^", "trained": "o"}

SMALL = network.StackSpec(attention=attention.AttentionSpec(d_model=9, heads=3), depth=4)  # 81 paths, all written out


class Spec(figure.Spec):
    """Shape and number of the random networks, texts for the trained one, and paths drawn of each length in each.

    `trained`: the packaged model is installed, and measured too.
    """

    dtype: str = "float64"
    d_model: int = 64
    heads: int = 4
    tokens: int = 32
    depth: int = 12
    pure_depth: int = 6
    count: int = 96
    texts: int = 8
    text_tokens: int = 48
    samples: int = 4
    trained: bool = pretrained.packaged_checkpoint() is not None


PRESETS = {
    "smoke": Spec(d_model=16, heads=2, tokens=8, depth=6, count=16, texts=2, text_tokens=12, samples=2),
    "quick": Spec(),
    "full": Spec(count=4096, texts=96, text_tokens=128, samples=16),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By variant and length: quantiles of shares and relative residuals; rates of fall; the error of the sum."""
    key = jax.random.key(spec.seed)
    stats = draw(_Random(spec), jax.random.fold_in(key, 0), spec.count, progress=True)
    quantiles = stats.quantile(LEVELS)
    data = {f"random_{name}": quantiles[name] for name in (*CURVES, "pure_relative")}
    data |= {f"random_{name}_error": median_error(stats.samples[name]) for name in JUDGED}
    data["random_nonfinite"] = np.array(sum(np.sum(count) for count in stats.left_out.values()))
    data["random_shape"] = np.array([spec.depth, spec.heads])
    data["pure_error"] = _pure_error(jax.random.fold_in(key, 2), spec.dtype)
    return data | _bert(spec, jax.random.fold_in(key, 1))


def _pure_error(key: jax.Array, dtype: str) -> np.ndarray:
    """Output of a network without skips and biases, less the sum of all products of one head a layer, over its size."""
    params = network.init(jax.random.fold_in(key, 0), SMALL, dtype=dtype)
    states = network.hidden_states(params, jax.random.normal(jax.random.fold_in(key, 1), (6, 9), dtype), SMALL)
    weigh = jax.jit(jax.vmap(lambda weights, x: attention.attention_weights(weights, x, SMALL.attention)))
    rows = np.asarray(weigh(params.attention, states[:-1]))
    values = np.einsum("lhab,lhbc->lhac", params.attention.value, params.attention.output)
    total = np.zeros(states.shape[1:])
    for heads in itertools.product(range(SMALL.attention.heads), repeat=SMALL.depth):
        term = np.asarray(states[0])
        for layer, head in enumerate(heads):
            term = rows[layer, head] @ term @ values[layer, head]
        total += term
    return np.asarray(np.linalg.norm(total - np.asarray(states[-1])) / np.linalg.norm(total))


@dataclasses.dataclass(frozen=True)
class _Random:
    """One random network: the measures of `_measure`; and the same layers without skip connections."""

    spec: Spec

    def __call__(self, key: jax.Array) -> dict[str, jax.Array]:
        spec = self.spec
        layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads)
        stack = network.StackSpec(attention=layer, depth=spec.depth, skip=True)
        x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, spec.d_model), spec.dtype)
        layers = network.random_layers(jax.random.fold_in(key, 1), stack, dtype=spec.dtype)
        measured = _measure(jax.random.fold_in(key, 2), layers, x, stack, spec.samples)

        pure = dataclasses.replace(stack, depth=spec.pure_depth, skip=False)
        layers = network.random_layers(jax.random.fold_in(key, 1), pure, dtype=spec.dtype)
        key_paths = jax.random.fold_in(key, 3)
        drawn = collapse.sample_path_log_residuals(key_paths, layers, x, pure, spec.pure_depth, spec.samples)
        measured["pure_relative"] = jnp.median(drawn.log_residual - drawn.log_norm, axis=0)
        return measured


@functools.partial(jax.jit, static_argnames=("stack", "samples"))
def _measure(
    key: jax.Array, layers: network.Layers, x: jax.Array, stack: network.StackSpec, samples: int
) -> dict[str, jax.Array]:
    """By length: shares and relative residuals of the sum of all paths, and medians over single paths."""
    depth, heads = stack.depth, stack.attention.heads
    shares = collapse.path_shares(layers, x, stack)
    paths = jax.vmap(lambda length: draw_paths(jax.random.fold_in(key, length), depth, heads, length, samples))(
        jnp.arange(depth + 1)
    )
    single = collapse.path_log_sizes(layers, x, stack, paths.reshape(-1, depth))
    log_residual = single.log_residual[:, -1].reshape(depth + 1, samples)
    log_norm = single.log_norm[:, -1].reshape(depth + 1, samples)
    return {
        "share": shares.share,
        "residual_share": shares.residual_share,
        "sum_relative": shares.log_residual - shares.log_norm,
        "path_relative": jnp.median(log_residual - log_norm, axis=1),
    }


@functools.partial(jax.jit, static_argnames=("stack", "samples"))
def _measure_texts(
    keys: jax.Array, layers: network.Layers, x: jax.Array, stack: network.StackSpec, samples: int
) -> dict[str, jax.Array]:
    return jax.lax.map(lambda one: _measure(one[0], layers, one[1], stack, samples), (keys, x))


def _bert(spec: Spec, key: jax.Array) -> dict[str, np.ndarray]:
    """Quantiles over texts for the packaged checkpoint and its random counterpart; NaN where it is not installed."""
    folder = pretrained.packaged_checkpoint() if spec.trained else None
    if folder is None:
        shapes = {f"{variant}_shape": np.array([6, 12]) for variant in VARIANTS[1:]}
        curves = {f"{variant}_{name}": np.full((3, 7), np.nan) for variant in VARIANTS[1:] for name in CURVES}
        errors = {f"{variant}_{name}_error": np.full(7, np.nan) for variant in VARIANTS[1:] for name in JUDGED}
        return shapes | curves | errors
    trained = pretrained.load(folder, dtype=spec.dtype)
    initial = pretrained.random_like(jax.random.fold_in(key, 1), trained)
    ids = jnp.asarray(sentences.token_ids(trained, spec.texts, spec.text_tokens))
    stack = dataclasses.replace(trained.spec, skip=True, mlp=None, norm=None)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.fold_in(key, 0), jnp.arange(len(ids)))
    data = {}
    for variant, model in (("initial", initial), ("trained", trained)):
        measured = _measure_texts(keys, model.params, jax.vmap(model.embed)(ids), stack, spec.samples)
        data |= {f"{variant}_{name}": np.quantile(np.asarray(measured[name]), LEVELS, axis=0) for name in CURVES}
        data |= {f"{variant}_{name}_error": median_error(np.asarray(measured[name])) for name in JUDGED}
        data[f"{variant}_shape"] = np.array([stack.depth, stack.attention.heads])
    return data


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Numbers of paths; shares of output and differences; relative residuals of sums, single paths, and pure nets."""
    drawing, panels = style.figure(columns=3, rows=2, width=4.8, height=3.9)
    length, relative = "length k of the path", "log ‖res(T)‖/‖T‖ (nats)"
    for variant in ("random", "trained"):
        depth, heads = (int(number) for number in data[f"{variant}_shape"])
        counts = [float(count) for count in collapse.path_counts(depth, heads)]
        label = f"L = {depth}, H = {heads} ({'Gaussian' if variant == 'random' else 'BERT'})"
        color = style.colour(MEANING[variant])
        panels[0].plot(range(depth + 1), counts, color=color, marker=MARKER[variant], label=label)
    count = "number of paths, C(L,k) H^k"
    style.panel(panels[0], length, count, "The number of paths", log="y", legend="lower right")

    # What each length adds, and how nearly equal its tokens are, for all weights.
    for panel, name, y, title in (
        (panels[1], "share", "share of the output", "What each length adds to the output"),
        (panels[2], "residual_share", "share of the differences", "… and to the differences between tokens"),
        (panels[3], "sum_relative", "log ‖res(Y_k)‖/‖Y_k‖ (nats)", "All paths of one length together"),
        (panels[4], "path_relative", relative, "Single paths, drawn at random"),
    ):
        for variant in VARIANTS:
            _bands(panel, data[f"{variant}_{name}"], MEANING[variant], LABELS[variant], MARKER[variant])
        style.panel(panel, length, y, title, legend="upper right" if "share" in name else "lower left")

    _bands(panels[5], data["random_pure_relative"], "attention", "without skips", "o")
    _bands(panels[5], data["random_path_relative"], "random", "with skips", "s")
    panels[5].set_yscale("symlog", linthresh=1, linscale=0.5)
    style.panel(panels[5], length, relative, "Single paths with and without skips", legend="lower left")
    for panel in panels:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing


def _bands(ax: Axes, values: np.ndarray, meaning: str, label: str, marker: str) -> None:
    style.bands(ax, np.arange(values.shape[1]), *values, meaning=meaning, label=label, marker=marker)


def _longest_less_shortest(data: Mapping[str, np.ndarray]) -> Measured:
    """Median distance from equal rows of the longest paths less that at length 1, of single paths and their sums."""
    names = [f"{variant}_{name}" for name in JUDGED for variant in VARIANTS]
    curves = [data[name][1, 1:] for name in names]
    falls = all((np.diff(curve) < 0).all() for curve in curves)
    return Measured(
        [curve[-1] - curve[0] for curve in curves],
        standard_error=[np.hypot(*data[f"{name}_error"][[1, -1]]) for name in names],
        where=[f"{LABELS[variant]}, {what}" for what in ("single paths", "their sum") for variant in VARIANTS],
        reads=curves,
        left_out=data["random_nonfinite"],
        numbers={"falls": "falls" if falls else "does not fall"},
    )


ROWS = (
    published(
        "paths-sum",
        "The output of a network of attention layers is the sum over all $H^{L}$ choices of a head in each layer of "
        r"$(P_L\thinspace\cdots\thinspace P_1)\thinspace X\thinspace(W_1\thinspace\cdots\thinspace W_L)$.",
        lambda data: data["pure_error"],
        (0, 1e-13),
        formula=True,
        source="proof-notes",
        place="the unrolled network, after the definition of a layer",
        hypotheses="no skips, no biases; $P$ of the forward pass",
        interval_from="the formula is exact; rounding of float64",
        note=f"identity; {SMALL.attention.heads**SMALL.depth} paths written out; error over the size of the output",
    ),
    published(
        "paths-single-collapse",
        "Long paths collapse in rank.",
        _longest_less_shortest,
        at_most(0),
        source="collapse-summary",
        place="finding 4",
        hypotheses="Gaussian weights of gain 1; the attention of all-MiniLM-L6-v2, before and after training, with "
        "skips and without its MLPs and LayerNorms",
        interval_from="our reading: the longest paths are nearer to equal rows than the shortest",
        note=r"median $\log\thinspace\lVert \mathrm{res}\rVert/\lVert \cdot\rVert$ of the longest paths less that of "
        "length 1, nats; single paths drawn at random, and the sum of all paths of a length; it <falls> at every "
        "length",
    ),
)
