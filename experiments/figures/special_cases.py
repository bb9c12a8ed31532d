"""Convolution and message passing as attention: how equal, at which sharpness, and what happens at the border."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from experiments import figure, style
from experiments.figure import About
from experiments.ledger import Claim, on_range, within
from rc_jax import attention
from rc_jax.attention import masks
from rc_jax.attention.special_cases import Padding

CORDONNIER = "Cordonnier et al. 2020, theorem 1"
OWN = "this package's own result"
ABOUT = About(
    title="Convolution and message passing are special cases of attention",
    caption=(
        "Left: largest difference between the attention layer built for a kernel and XLA's convolution, over the "
        "convolution's largest output, as the sharpness α of its scores grows; dotted: the laws. The floors are "
        "roundings. Middle: where the last token of a line puts the weight of the head that looks one to the right, "
        "where nothing is: on itself, or, where there is one, on a token of zeros. Right: attention under a graph's "
        "mask against dense aggregates; the symmetric one needs a diagonal factor on either side. "
        "Random kernels, images and graphs."
    ),
    formula="softmax_j(−α |j − i − δ|²) → one-hot at i + δ;   D^(−½)A D^(−½) = D^(½) (D⁻¹A) D^(−½)",
    topic="layer",
    minutes={"smoke": 0.08, "quick": 0.1, "full": 1.0},
)
PADDINGS: tuple[Padding, ...] = ("zeros", "edge")
TYPES = ("float32", "float64")
FITTED = (8.0, 20.0)  # of α, for the slopes: the next terms of either law are below e^(−8/2) of the first there
SLOPES = {"zeros": (-0.51, -0.49), "edge": (-1.02, -0.98)}  # −½ and −1, to 2 %
Data = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Spec(figure.Spec):
    """Images (line and square) and kernels; sharpness; graphs."""

    dtype: str = "float64"
    line: int = 64
    side: int = 12
    channels: int = 4
    widths: tuple[int, int] = (5, 3)
    sharpness: int = 33
    nodes: int = 64
    densities: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8)


PRESETS = {
    "smoke": Spec(line=12, side=5, channels=2, widths=(3, 3), sharpness=17, nodes=12, densities=(0.1, 0.4)),
    "quick": Spec(),
    "full": Spec(line=512, side=32, channels=16, widths=(9, 5), nodes=512),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Errors by type, dimension, padding and sharpness; weights at a border; errors of aggregates by density."""
    # At the last, float64 is one-hot to the bit.
    alphas = np.concatenate([np.linspace(1, 32, spec.sharpness), np.arange(34.0, 96, 4), [128.0, 256.0, 4096.0]])
    errors = [_errors(spec, alphas, kind) for kind in TYPES]
    return {
        "alpha": alphas,
        "error": np.stack(errors),  # (type, dimension, padding, α)
        "terms": np.array([spec.widths[0], spec.widths[1] ** 2]) * spec.channels,
        "border": _border(),
        "densities": np.array(spec.densities),
        "aggregates": np.stack([_aggregates(spec, kind) for kind in TYPES]),
    }


def _errors(spec: Spec, alphas: np.ndarray, kind: str) -> np.ndarray:
    """Largest difference over largest output: (dimension, padding, α)."""
    rows = []
    for dims, extents in ((1, (spec.line,)), (2, (spec.side, spec.side))):
        draw = np.random.default_rng([spec.seed, dims]).normal
        image = jnp.asarray(draw(size=(*extents, spec.channels)), kind)
        kernel = jnp.asarray(draw(size=(*(spec.widths[dims - 1],) * dims, spec.channels, spec.channels)), kind)
        rows.append([_sweep(image, kernel, padding, jnp.asarray(alphas, kind)) for padding in PADDINGS])
    return np.array(rows, float)


def _sweep(image: jax.Array, kernel: jax.Array, padding: Padding, alphas: jax.Array) -> np.ndarray:
    @jax.jit
    def sweep(alphas: jax.Array) -> jax.Array:
        exact = _convolution(image, kernel, padding)
        layer = attention.convolution_layer(kernel)
        tokens = attention.convolution_tokens(image, layer.spec, padding=padding)
        flat = jnp.reshape(exact, (-1, exact.shape[-1]))

        def error(alpha: jax.Array) -> jax.Array:
            out = attention.attend(layer.params, tokens, layer.spec, scale=alpha)
            return jnp.max(jnp.abs(out[: flat.shape[0], : flat.shape[1]] - flat)) / jnp.max(jnp.abs(flat))

        return jax.lax.map(error, alphas)

    return np.asarray(sweep(alphas))


def _convolution(image: jax.Array, kernel: jax.Array, padding: Padding) -> jax.Array:
    """XLA's convolution; a border of copies is made beforehand."""
    dims = image.ndim - 1
    if padding == "edge":
        image = jnp.pad(image, [*(((width - 1) // 2, width // 2) for width in kernel.shape[:dims]), (0, 0)], "edge")
    names = ("NWC", "WIO", "NWC") if dims == 1 else ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        image[None], kernel, (1,) * dims, "SAME" if padding == "zeros" else "VALID", dimension_numbers=names,
        precision="highest",
    )[0]  # fmt: skip


def _border() -> np.ndarray:
    """Weights of the last of six tokens in the head of offset +1: (padding, α of 1, 4, 16, token or token of zeros)."""
    layer = attention.convolution_layer(jnp.ones((3, 1, 1)))
    rows = np.zeros((2, 3, 7))
    for index, padding in enumerate(PADDINGS):
        tokens = attention.convolution_tokens(jnp.ones((6, 1)), layer.spec, padding=padding)
        for place, alpha in enumerate((1.0, 4.0, 16.0)):
            row = attention.attention_weights(layer.params, tokens, layer.spec, scale=alpha)[2, 5]
            rows[index, place, : row.size] = row
    return rows


def _aggregates(spec: Spec, kind: str) -> np.ndarray:
    """Largest errors over largest outputs: (mean, symmetric with diagonals, symmetric without; density)."""
    random = np.random.default_rng([spec.seed, 3])
    x = jnp.asarray(random.normal(size=(spec.nodes, spec.channels)), kind)
    weight = jnp.asarray(random.normal(size=(spec.channels, spec.channels)), kind)
    layer = attention.message_passing_layer(weight)
    columns = []
    for density in spec.densities:
        upper = np.triu(random.random((spec.nodes, spec.nodes)) < density, 1)
        mask = masks.graph((upper | upper.T).astype(float))  # every node sees itself: none is alone
        edges = np.asarray(mask, float)
        degree = edges.sum(axis=1, keepdims=True)
        root = jnp.asarray(np.sqrt(degree), kind)
        product = np.asarray(x, float) @ np.asarray(weight, float)
        mean, symmetric = edges / degree @ product, edges / np.sqrt(degree) / np.sqrt(degree.T) @ product
        plain = attention.attend(layer.params, x, layer.spec, mask=mask)
        between = root * attention.attend(layer.params, x / root, layer.spec, mask=mask)
        pairs = ((plain, mean), (between, symmetric), (plain, symmetric))
        columns.append([np.abs(np.asarray(out) - exact).max() / np.abs(exact).max() for out, exact in pairs])
    return np.array(columns, float).T


def plot(data: Data) -> Drawing:
    """Error against sharpness; weights at a border; aggregates."""
    drawing, (error, border, graph) = style.figure(columns=3, width=5.0, height=4.6)
    _plot_error(error, data)
    _plot_border(border, data)
    for index, (label, marker) in enumerate(
        (("mean, D⁻¹A X W", "o"), ("symmetric, with diagonals", "s"), ("symmetric, without", "^"))
    ):
        for at, kind in enumerate(TYPES):
            graph.plot(
                data["densities"], np.maximum(data["aggregates"][at, index], 1e-17), marker=marker,
                color=style.colour(kind), linestyle=style.DASHES[index], label=f"{label}, {kind}", fillstyle="none",
            )  # fmt: skip
    graph.set_xscale("log")
    graph.set_yscale("log")
    graph.set_xticks(data["densities"], [f"{each:g}" for each in data["densities"]])
    graph.set_xticks([], minor=True)
    style.labels(graph, "density of the graph", "largest error / largest output", "Message passing, dense aggregates")
    style.legend(graph, "below", columns=2, fontsize=8)
    return drawing


def _plot_error(ax: Axes, data: Data) -> None:
    alpha = data["alpha"][:-1]
    for at, kind in enumerate(TYPES):
        for dims in (1, 2):
            for index, padding in enumerate(PADDINGS):
                ax.plot(
                    alpha, np.maximum(data["error"][at, dims - 1, index, :-1], 1e-17), color=style.colour(kind),
                    marker=style.MARKERS[2 * index + dims - 1], markevery=4, markersize=4, linewidth=1,
                    fillstyle="none", label=f"{padding}, {dims}-d, {kind}",
                )  # fmt: skip
    for law, text in ((np.exp(-alpha / 2), "$e^{-α/2}$, a token of zeros"), (2 * np.exp(-alpha), "$2e^{-α}$, none")):
        shown = law > 1e-17
        ax.plot(alpha[shown], law[shown], color=style.colour("theory"), linestyle=":" if "zeros" in text else "--",
                linewidth=1.2, label=text, zorder=5)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    style.labels(ax, "α, sharpness of the scores", "largest error / largest output", "Convolution by attention")
    style.legend(ax, "below", columns=2, fontsize=8)


def _plot_border(ax: Axes, data: Data) -> None:
    place = np.arange(7)
    for index in range(len(PADDINGS)):
        for step, alpha in enumerate((1, 4, 16)):
            ax.bar(
                place + 0.27 * (step - 1), data["border"][index, step] * (1 - 2 * index),
                0.25, color=style.sequence(3)[step], label=f"α = {alpha}" if index == 0 else None,
            )  # fmt: skip
    ax.axhline(0, color=style.colour("reference"), linewidth=0.8)
    ax.set_xticks(place, ["1", "2", "3", "4", "5", "6", "zeros"])
    ax.set_yticks([-1, -0.5, 0, 0.5, 1], ["1", "0.5", "0", "0.5", "1"])
    ax.text(0, 0.8, "with a token of zeros ↑")
    ax.text(0, -0.85, "without ↓")
    style.labels(ax, "token", "weight in the head of offset +1", "Token 6 of 6 looks to the right")
    style.legend(ax, "below", columns=3)


def claims(data: Data) -> list[Claim]:
    """Equality to rounding, both laws, the border, and the aggregates."""
    alpha, names = data["alpha"], [f"{dims}-d, {padding}" for dims in (1, 2) for padding in PADDINGS]
    inside = (alpha >= FITTED[0]) & (alpha <= FITTED[1])
    slopes = [[np.polyfit(alpha[inside], np.log(data["error"][1, dims, index, inside]), 1)[0] for index in range(2)]
              for dims in range(2)]  # fmt: skip
    found = [
        on_range(
            f"special-convolution-{kind}", f"a layer with one head per offset is a convolution, to rounding, {kind}",
            CORDONNIER, "equal", (last := data["error"][at, :, :, -1].ravel()),
            last <= np.repeat(data["terms"], 2) * np.finfo(kind).eps, names,
            note="largest error over largest output; allowed: ε for each product in a sum",
        )
        for at, kind in enumerate(TYPES)
    ]  # fmt: skip
    for index, padding in enumerate(PADDINGS):
        value = np.array(slopes)[:, index]
        low, high = SLOPES[padding]
        found.append(on_range(
            f"special-sharpness-{padding}", f"error falls as e^(−{'α/2' if padding == 'zeros' else 'α'}), {padding}",
            OWN, -0.5 if padding == "zeros" else -1, value, (value >= low) & (value <= high), ["1-d", "2-d"],
            note=f"slope of the logarithm over α from {FITTED[0]:g} to {FITTED[1]:g}, float64",
        ))  # fmt: skip
    limit = data["border"][:, -1]
    without, plain = data["aggregates"][1, 2], data["aggregates"][1, :2]
    allowed = 64 * np.finfo("float64").eps
    return [
        *found,
        within("special-border-edge", "without a token of zeros an offset out of the image finds the nearest token",
               OWN, 1, limit[1, 5], 0.999, 1, note="weight at α = 16"),
        within("special-border-zeros", "with one, it finds that: zero padding costs one token", OWN, 1, limit[0, 6],
               0.999, 1, note="weight at α = 16"),
        within("special-graph", "zero queries under a graph's mask: D⁻¹A X W, and between diagonals the symmetric one",
               "Kipf & Welling 2017, eq. 2, and this package", "equal", plain.max(), 0, allowed,
               note="largest error over largest output in float64, all densities; allowed: 64 ε"),
        on_range("special-graph-plain", "without the diagonals it is another aggregate: error above 1 %", OWN, "> 0.01",
                 without, without > 0.01, [f"{each:g}" for each in data["densities"]]),
    ]  # fmt: skip
