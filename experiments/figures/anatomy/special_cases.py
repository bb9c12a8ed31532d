"""Convolution and message passing as attention: how equal, at which sharpness, and what happens at the border."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.ledger import Measured, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import attention
from rc_jax.attention import constructions, masks
from rc_jax.attention.constructions import Padding

PAGE = "docs/cost_and_special_cases.md"
ABOUT = figure.About(
    title="Convolution and message passing are special cases of attention",
    caption=(
        "Left: largest difference between the attention layer built for a kernel and XLA's convolution, over the "
        "convolution's largest output, as the sharpness α of its scores grows; dotted: the laws. The floors are "
        "roundings. Right: attention under a graph's mask against dense aggregates; the symmetric one needs a "
        "diagonal factor on either side. Random kernels, images and graphs."
    ),
    formula="softmax_j(−α |j − i − δ|²) → one-hot at i + δ;   D^(−½)A D^(−½) = D^(½) (D⁻¹A) D^(−½)",
    topic="layer",
    minutes={"smoke": 0.08, "quick": 0.1, "full": 1.0},
)
PADDINGS: tuple[Padding, ...] = ("zeros", "edge")
TYPES = ("float32", "float64")
FITTED = (8.0, 20.0)  # of α, for the slopes: the next terms of either law are below e^(−8/2) of the first there
SLOPES = {"zeros": -0.5, "edge": -1.0}
CLOSE = 0.02  # of a slope
Data = Mapping[str, np.ndarray]


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
    """Errors by type, dimension, padding and sharpness; errors of aggregates by density."""
    # At the last, float64 is one-hot to the bit.
    alphas = np.concatenate([np.linspace(1, 32, spec.sharpness), np.arange(34.0, 96, 4), [128.0, 256.0, 4096.0]])
    return {
        "alpha": alphas, "error": np.stack([_errors(spec, alphas, kind) for kind in TYPES]),
        "terms": np.array([spec.widths[0], spec.widths[1] ** 2]) * spec.channels,
        **_learnt_field(spec),
        "densities": np.array(spec.densities), "aggregates": np.stack([_aggregates(spec, kind) for kind in TYPES]),
    }  # fmt: skip


def _errors(spec: Spec, alphas: np.ndarray, kind: str) -> np.ndarray:
    """Largest difference over largest output: (dimension, padding, α)."""
    rows = []
    for dims, extents in ((1, (spec.line,)), (2, (spec.side, spec.side))):
        draw = np.random.default_rng([spec.seed, dims]).normal
        image = jnp.asarray(draw(size=(*extents, spec.channels)), kind)
        kernel = jnp.asarray(draw(size=(*(spec.widths[dims - 1],) * dims, spec.channels, spec.channels)), kind)
        rows.append([_sweep(image, kernel, jnp.asarray(alphas, kind), padding) for padding in PADDINGS])
    return np.array(rows, float)


@functools.partial(jax.jit, static_argnames="padding")
def _sweep(image: jax.Array, kernel: jax.Array, alphas: jax.Array, padding: Padding) -> jax.Array:
    """Error of the layer built for a kernel, at each sharpness, against XLA's convolution."""
    dims, bordered = image.ndim - 1, image
    if padding == "edge":  # XLA has no border of copies
        border = [((width - 1) // 2, width // 2) for width in kernel.shape[:dims]]
        bordered = jnp.pad(image, [*border, (0, 0)], "edge")
    exact = jax.lax.conv_general_dilated(
        bordered[None], kernel, (1,) * dims, "SAME" if padding == "zeros" else "VALID", precision="highest",
        dimension_numbers=("NWC", "WIO", "NWC") if dims == 1 else ("NHWC", "HWIO", "NHWC"),
    )[0]  # fmt: skip
    layer = constructions.convolution_layer(kernel)
    tokens = constructions.convolution_tokens(image, layer.spec, padding=padding)
    flat = jnp.reshape(exact, (-1, exact.shape[-1]))

    def error(alpha: jax.Array) -> jax.Array:
        out = attention.attend(layer.params, tokens, layer.spec, scale=alpha)
        return jnp.max(jnp.abs(out[: flat.shape[0], : flat.shape[1]] - flat)) / jnp.max(jnp.abs(flat))

    return jax.lax.map(error, alphas)


def _learnt_field(spec: Spec) -> dict[str, np.ndarray]:
    """A head whose scores are positions' alone, trained to be a convolution on a ring, and a head of scores of tokens.

    Of the first the total variation of its weights from the kernel, after training and before; of the second that of
    its weights on one input from those on another, in the mean over rows.
    """
    random = np.random.default_rng([spec.seed, 4])
    n, width, taps = spec.line, spec.channels, random.dirichlet(np.ones(5))
    x = jnp.asarray(random.normal(size=(n, width)))
    target = sum(tap * jnp.roll(x, 2 - at, axis=0) for at, tap in enumerate(taps))
    layer = attention.AttentionSpec(d_model=n + width, d_head=n + width)
    both = jnp.concatenate([jnp.eye(n), x], axis=1)  # a token is its position, one-hot, and its features
    place, rest = jnp.eye(n + width, n), jnp.diag(jnp.arange(n + width) >= n).astype(x.dtype)
    ring = (np.arange(n)[None] - np.arange(n)[:, None]) % n

    def output(field: jax.Array) -> jax.Array:
        scores = place @ field[ring] @ place.T
        params = attention.AttentionParams(scores[None], (place @ place.T)[None], rest[None], rest[None])
        return attention.attend(params, both, layer, scale=1.0)[:, n:]

    def loss(field: jax.Array) -> jax.Array:
        return jnp.mean((output(field) - target) ** 2)

    # Adam, written out: the step falls with the square root of time
    def step(state: tuple[jax.Array, ...], at: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
        field, mean, square = state
        slope = jax.grad(loss)(field)
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        unbiased = mean / (1 - 0.9 ** (at + 1)), square / (1 - 0.999 ** (at + 1))
        return (field - 0.3 * unbiased[0] / (jnp.sqrt(unbiased[1]) + 1e-12), mean, square), None

    zeros = jnp.zeros(n)
    field = jax.jit(lambda: jax.lax.scan(step, (zeros, zeros, zeros), jnp.arange(1000.0))[0][0])()
    found = np.asarray(jax.nn.softmax(field))
    wanted = np.zeros(n)
    wanted[(np.arange(5) - 2) % n] = taps
    tokens = attention.AttentionSpec(d_model=width)
    params = attention.init(jax.random.key(spec.seed), tokens, dtype=spec.dtype)
    inputs = (x, jnp.asarray(random.normal(size=(n, width))))
    one, other = (np.asarray(attention.attention_weights(params, each, tokens)) for each in inputs)
    return {
        "field": np.asarray(np.abs(found - wanted).sum() / 2),
        "field_start": np.asarray(np.abs(1 / n - wanted).sum() / 2),
        "moved": np.asarray(np.abs(one - other).sum(axis=-1).mean() / 2),
    }


def _aggregates(spec: Spec, kind: str) -> np.ndarray:
    """Largest errors over largest outputs: (mean, symmetric with diagonals, symmetric without; density)."""
    random = np.random.default_rng([spec.seed, 3])
    x = jnp.asarray(random.normal(size=(spec.nodes, spec.channels)), kind)
    weight = jnp.asarray(random.normal(size=(spec.channels, spec.channels)), kind)
    layer = constructions.message_passing_layer(weight)
    product = np.asarray(x, float) @ np.asarray(weight, float)
    columns = []
    for density in spec.densities:
        upper = np.triu(random.random((spec.nodes, spec.nodes)) < density, 1)
        mask = masks.graph((upper | upper.T).astype(float))  # every node sees itself: none is alone
        edges = np.asarray(mask, float)
        degree = edges.sum(axis=1, keepdims=True)
        root = jnp.asarray(np.sqrt(degree), kind)
        mean, symmetric = edges / degree @ product, edges / np.sqrt(degree) / np.sqrt(degree.T) @ product
        plain = attention.attend(layer.params, x, layer.spec, mask=mask)
        between = root * attention.attend(layer.params, x / root, layer.spec, mask=mask)
        pairs = ((plain, mean), (between, symmetric), (plain, symmetric))
        columns.append([np.abs(np.asarray(out) - exact).max() / np.abs(exact).max() for out, exact in pairs])
    return np.array(columns, float).T


def plot(data: Data) -> Drawing:
    """Error against sharpness; aggregates."""
    drawing, (error, graph) = style.figure(columns=2, width=6.2, height=4.6)
    alpha, densities = data["alpha"][:-1], data["densities"]
    for at, kind in enumerate(TYPES):
        for dims in (1, 2):
            for index, padding in enumerate(PADDINGS):
                values = np.maximum(data["error"][at, dims - 1, index, :-1], 1e-17)
                error.plot(alpha, values, color=style.colour(kind), marker=style.MARKERS[2 * index + dims - 1],
                           markevery=4, markersize=4, linewidth=1, fillstyle="none",
                           label=f"{padding}, {dims}-d, {kind}")  # fmt: skip
        # Message passing against dense aggregates.
        labels = ("mean, D⁻¹A X W", "symmetric, with diagonals", "symmetric, without")
        for index, (label, marker) in enumerate(zip(labels, "os^", strict=True)):
            values = np.maximum(data["aggregates"][at, index], 1e-17)
            graph.plot(densities, values, marker=marker, color=style.colour(kind), linestyle=style.DASHES[index],
                       label=f"{label}, {kind}", fillstyle="none")  # fmt: skip
    for values, dash, text in (
        (np.exp(-alpha / 2), ":", r"$e^{-\alpha/2}$, a token of "
        "zeros"), (2 * np.exp(-alpha), "--", r"$2e^{-\alpha}$, "
        "without one"),
    ):  # fmt: skip
        shown = values > 1e-17
        error.plot(alpha[shown], values[shown], color=style.colour("theory"), linestyle=dash, linewidth=1.2, label=text,
                   zorder=5)  # fmt: skip
    ratio = "largest error / largest output"
    style.panel(error, "α, sharpness of the scores", ratio, "Convolution by attention", log="xy", base=2,
                legend="below", columns=2, fontsize=9)  # fmt: skip
    style.panel(graph, "density of the graph", ratio, "Message passing, dense aggregates", log="xy", legend="below",
                columns=2, fontsize=9)  # fmt: skip
    graph.set_xticks(densities, [f"{each:g}" for each in densities])
    graph.set_xticks([], minor=True)
    return drawing


EPS = np.array([np.finfo(kind).eps for kind in TYPES])
CASES = [(dims, padding) for dims in (1, 2) for padding in PADDINGS]
NAMES = [f"{dims}-d, {padding}" for dims, padding in CASES]


def _convolution(data: Data) -> Measured:
    """Error at the largest sharpness, in roundings for each product in a sum."""
    allowed = EPS[:, None] * np.repeat(data["terms"], len(PADDINGS))
    return Measured(
        (data["error"][..., -1].reshape(len(TYPES), -1) / allowed).ravel(),
        where=[f"{kind}, {name}" for kind in TYPES for name in NAMES],
    )


def _aggregation(data: Data) -> Measured:
    """Largest error of the two exact aggregates over graphs, in roundings."""
    return Measured(
        (data["aggregates"][:, :2].max(2) / EPS[:, None]).ravel(),
        where=[f"{kind}, {name}" for kind in TYPES for name in ("mean", "symmetric")],
    )


def _slopes(data: Data) -> Measured:
    """Slopes of the logarithm of the error in α, in float64."""
    alpha, error = data["alpha"], data["error"][TYPES.index("float64")]
    inside = (alpha >= FITTED[0]) & (alpha <= FITTED[1])
    logs = np.log(error.reshape(len(NAMES), -1)[:, inside])
    return Measured([np.polyfit(alpha[inside], log, 1)[0] for log in logs], where=NAMES)


EXPECTED = np.array([SLOPES[padding] for _, padding in CASES])
ROWS = (
    published(
        "special-convolution-float64",
        "A self-attention layer with one head for each offset of a kernel and relative positions can express any "
        "convolution.",
        _convolution,
        at_most(1),
        formula=True,
        source="cordonnier2020",
        place="abstract; theorem 1, as others restate it",
        hypotheses=r"a random kernel, a line and a square, scores of sharpness $\alpha=4096$",
        interval_from="one rounding for each product in a sum",
        note="measured: largest difference to XLA's convolution, in units of that; so a CNN is a special case of "
        "attention, as the study notes say",
    ),
    published(
        "special-learnt-field",
        "Attention can also be called a special CNN, one whose receptive field is learnt.",
        lambda data: Measured(
            [data["field"], data["moved"]],
            where=["scores of positions", "scores of tokens"],
            reads=[data["field_start"]],
            numbers={"start": data["field_start"]},
        ),
        at_most(0.05),
        formula=True,
        needs="parts",
        source="study-notes",
        place="section on attention against CNN",
        hypotheses="a convolution has the same field on every input; one head; positions: trained by Adam to be a "
        "given convolution on a ring, from an even field; tokens: random weights, normal tokens",
        interval_from="our tolerance: a twentieth",
        note="of positions the field is learnt: total variation of the weights from the kernel, <start:.2f> at the "
        "start; of tokens the field is not learnt but computed from the input: total variation of the weights on one "
        "input from those on another, mean over rows; so it is a CNN with a learnt field where the scores are of "
        "positions alone",
    ),
    published(
        "special-graph",
        "On a graph, attention needs scores along the edges only, and all others can be set to 0.",
        _aggregation,
        at_most(64),
        formula=True,
        source="study-notes",
        place="section on attention against GNN",
        hypotheses="zero queries under a graph's mask, random graphs; weights are set to 0, not scores",
        interval_from="64 roundings",
        note=r"identity; measured: largest difference, in roundings, to $D^{-1}A\thinspace X\thinspace W$ and, "
        "between diagonal factors, to the symmetric form of Kipf & Welling 2017, equation 2",
    ),
    law(
        "special-sharpness-zeros",
        r"The error of a convolution by attention falls with the sharpness $\alpha$ of its scores, as $e^{-\alpha/2}$ "
        r"with a token of zeros for the border and as $e^{-\alpha}$ without.",
        _slopes,
        near(EXPECTED, CLOSE * np.abs(EXPECTED)),
        proof="proved",
        place=PAGE,
        hypotheses=rf"scores $-\alpha\lvert j-i-\delta\rvert^{{2}}$; $\alpha$ from {FITTED[0]:g} to {FITTED[1]:g}, "
        "float64",
        interval_from="our tolerance for the next term: two per cent",
        neighbours=["cordonnier2020"],
        note="measured: slope of the logarithm",
    ),
)
