"""LayerNorm and value matrices: where it changes nothing about collapse, and where it holds tokens apart."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.figures._medians import median_error
from experiments.figures._samples import draw
from experiments.figures.blocks import _norm_values as nets
from experiments.figures.blocks._norm_values import NORMS
from experiments.ledger import Measured, at_least, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import attention, collapse, network, pretrained

ABOUT = figure.About(
    title="LayerNorm, by the value matrices it meets",
    caption=(
        "Attention without skips and MLPs, with and without a LayerNorm after every layer. One head as wide as the "
        "tokens, Gaussian W_QK; W_V W_O is the identity, a random rotation or Gaussian (bands: 5–95 % of "
        "initialisations), or a trained BERT's heads with their own LayerNorms. LayerNorm delays collapse by about "
        "one layer, in the trained heads by half a layer, and leaves the cube. Fifth panel: a shear as W_V W_O "
        "under causal uniform attention, two tokens, the second anywhere on a circle; there LayerNorm keeps 5 of 12"
        " starts apart at every depth. Sixth: how unequal the tokens' LayerNorm divisors are; where they are equal "
        "it is a rescaling of W."
    ),
    formula="X ← LN(Σ_h P_h X W_V,h W_O,h);   ‖res(X^l)‖/‖X^l‖,  rank ‖X‖_F²/‖X‖₂²,  log max/min of LN's divisors",
    topic="blocks",
    minutes={"smoke": 0.4, "quick": 0.89, "full": 25.0},
    core=True,
)

LEVELS = (0.05, 0.5, 0.95)
KINDS = ("identity", "orthogonal", "gaussian")
LABELS = {"identity": "identity", "orthogonal": "rotation", "gaussian": "Gaussian", "trained": "trained"}
COLOURS = {"identity": "identity", "orthogonal": "skip", "gaussian": "random", "trained": "trained"}
MARKER = {"identity": "s", "orthogonal": "^", "gaussian": "o", "trained": "o"}
DASH = {"off": style.DASHES[1], "on": style.DASHES[0]}
SHEAR = -2.0  # the second token ends at 150° from the first, or beside it

# Fixed before anything was measured: the exponent of the fall rounds to 3. A LayerNorm that is a rescaling of W has
# equal divisors, to 1 %. Of the starts on the circle, 150° of 360° lead to the equilibrium of rank 2.
EQUAL, SHARE, HELD = 0.01, 5 / 12, 0.1
PUSHED = (0.25, 1.0, 4.0, 8.0)  # strengths s of the logits of tokens that are pushed alike
EXACT_PUSH = 1e-6  # square of what the push grows to, up to 200 times 10⁻⁵ of a token
FIGURES = 1e-9  # of the fall without LayerNorm: k 2^−k of the tokens' own length, and rounding of float64
ROUNDING = 16 * float(np.finfo(np.float32).eps)


class Spec(figure.Spec):
    """Networks, logit scales (1: logits of standard deviation 1 at first), starts on the circle, texts.

    `trained`: the packaged model is installed, and measured too.
    """

    d_model: int = 48
    tokens: int = 24
    depth: int = 10
    count: int = 48
    scales: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    circle_depth: int = 40
    circle_count: int = 4096
    shown: int = 16
    texts: int = 8
    text_tokens: int = 48
    trained: bool = pretrained.packaged_checkpoint() is not None


PRESETS = {
    "smoke": Spec(d_model=12, tokens=6, depth=7, count=8, scales=(1.0, 4.0), texts=1, text_tokens=8),
    "quick": Spec(),
    "full": Spec(d_model=64, tokens=32, depth=12, count=2048, texts=64, text_tokens=128),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By kind of value matrix and LayerNorm: relative residuals, exponents, ranks, divisors; equilibria; trained."""
    key = jax.random.key(spec.seed)
    stats = draw(functools.partial(_network, spec=spec), jax.random.fold_in(key, 0), spec.count, progress=True)
    data = {name: values for name, values in stats.quantile(LEVELS).items() if "exponent" not in name}
    for name in (f"exponent_{norm}" for norm in NORMS):
        data |= {f"{name}_mean": stats.mean[name], f"{name}_standard_error": stats.standard_error[name]}
    for name in ("relative_on", "divisors_on", "sharp_on"):
        known = np.isfinite(stats.samples[name])  # sizes of logits at which one is not are not judged
        data[f"{name}_error"] = median_error(np.where(known, stats.samples[name], 0))
    data["scales"], data["sharp_on_left_out"] = np.asarray(spec.scales), stats.left_out["sharp_on"]
    unknown = [np.sum(count) for name, count in stats.left_out.items() if "sharp" not in name]
    data["unknown"] = np.array(sum(unknown))
    polytopes = nets.polytopes(jax.random.fold_in(key, 2), spec.d_model, spec.circle_depth, spec.dtype)
    texts = nets.on_texts(spec.texts if spec.trained else 0, spec.text_tokens, spec.dtype, spec.seed, LEVELS)
    with jax.enable_x64(True):
        push = nets.common_push(PUSHED, spec.d_model)
    return data | _circle(spec) | polytopes | push | texts | _affine_ranks(spec)


def _affine_ranks(spec: Spec) -> dict[str, np.ndarray]:
    """Rank of the differences of tokens before and after a LayerNorm: three tokens on a line, and random tokens."""
    first, along = jnp.array([1.0, 2.0, 0.0, -1.0]), jnp.array([0.5, -1.0, 1.0, 3.0])
    line = jnp.stack([first, first + along, first + 2 * along])
    random = jax.random.normal(jax.random.key(spec.seed), (spec.tokens, spec.d_model), spec.dtype)
    unit = [network.NormParams(jnp.ones(x.shape[1]), jnp.zeros(x.shape[1])) for x in (line, random)]
    pairs = [(x, network.layer_norm(x, one, 0.0)) for x, one in zip((line, random), unit, strict=True)]
    values = [[np.linalg.svd(x - x.mean(axis=0), compute_uv=False) for x in map(np.asarray, pair)] for pair in pairs]
    return {"affine_rank": np.array([[np.sum(each > 1e-4 * each[0]) for each in pair] for pair in values], float)}


def _network(key: jax.Array, spec: Spec) -> dict[str, jax.Array]:
    """One draw of tokens, W_QK and values: every kind of value matrix, LayerNorm on and off, every scale."""
    d = spec.d_model
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=d), depth=spec.depth, norm="post")
    x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, d), spec.dtype)
    params = network.init(jax.random.fold_in(key, 1), stack, dtype=spec.dtype)
    kinds = nets.values(jax.random.fold_in(key, 2), spec.depth, d, spec.dtype)
    matrices = jnp.stack([kinds[kind] for kind in KINDS])
    scales = jnp.asarray(spec.scales, spec.dtype) * d**-0.5
    pairs = jnp.repeat(matrices, len(scales), axis=0), jnp.tile(scales, len(KINDS))
    ordinary = spec.scales.index(1.0)

    def measured(at: tuple[jax.Array, jax.Array], one: network.StackSpec) -> dict[str, jax.Array]:
        weights = nets.with_values(params, at[0])
        relative, logs, states = nets.residuals(weights, x, one, at[1])
        falls = jnp.diff(logs)
        return {"relative": relative, "exponent": falls[-1] / falls[-2], "rank": jax.vmap(collapse.stable_rank)(states),
                "divisors": nets.divisors(weights, states, one)}  # fmt: skip

    # Every quantity on the grid of values and scales; all but sharpness at the default scale.
    by_norm = {}
    for name, norm in NORMS.items():
        one = dataclasses.replace(stack, norm=norm)
        rows = jax.lax.map(functools.partial(measured, one=one), pairs)
        grids = {key: values.reshape(len(KINDS), len(scales), *values.shape[1:]) for key, values in rows.items()}
        by_norm |= {f"{quantity}_{name}": grid[:, ordinary] for quantity, grid in grids.items()}
        by_norm[f"sharp_{name}"] = grids["relative"][:, :, -1]
    return by_norm


def _circle(spec: Spec) -> dict[str, np.ndarray]:
    """The shear with LayerNorm from a grid of starts, without it in float64, and what one layer does at rest."""
    angles = (np.arange(spec.circle_count) + 0.5) * (2 * np.pi / spec.circle_count)

    def relative(angle: jax.Array) -> jax.Array:
        net = nets.shear(angle[None], SHEAR, spec.circle_depth, spec.dtype)
        return nets.residuals(net.params, net.x, net.spec)[0]

    on = np.asarray(jax.jit(jax.vmap(relative))(jnp.asarray(angles, spec.dtype)))
    apart = on[:, -1] > np.log(HELD)

    # Without LayerNorm a layer leaves the first token u₁ and takes the difference d of the two to ½ d W. The difference
    # itself is followed: that of two tokens this close has lost its digits.
    first, d, off = np.array([1.0, 0.0]), np.stack([np.cos(angles) - 1, np.sin(angles)], 1), []
    for _ in range(spec.circle_depth + 1):
        length = np.sqrt(1 + np.sum((first + d) ** 2, axis=1))
        off.append(np.log(np.linalg.norm(d, axis=1) / 2**0.5 / length))
        d = 0.5 * d @ np.array([[1.0, 0.0], [SHEAR, 1.0]])
    fall = off[-1] - off[-2]
    shown = slice(spec.circle_count // spec.shown // 2, None, spec.circle_count // spec.shown)

    # At rest: one layer moves nothing, and the divisors of the two tokens differ.
    net = nets.shear(jnp.asarray([np.arccos(-np.sqrt(1 - SHEAR**-2))], spec.dtype), SHEAR, 1, spec.dtype)
    return {
        "circle_on": on[shown], "circle_off": np.stack(off, axis=1)[shown], "held": apart.mean(),
        "fall": fall.mean(), "fall_error": np.abs(fall - shear_fall(angles, spec.circle_depth)).max(),
        "shear_error": nets.ratio(network.apply(net.params, net.x, net.spec) - net.x, net.x),
        "shear_divisors": np.asarray(nets.divisors(net.params, net.x[None].repeat(2, 0), net.spec)[0]),
    }  # fmt: skip


def shear_fall(angle: np.ndarray, layer: int) -> np.ndarray:
    """Change of log ‖res‖ by a layer without LayerNorm, from this angle of the second token.

    The difference of the tokens after k layers is in proportion to 2^−k (k + c, ½), c = ½ tan(angle/2).
    """
    c = np.tan(np.asarray(angle) / 2) / 2
    return -np.log(2) + 0.5 * np.log(((layer + c) ** 2 + 0.25) / ((layer - 1 + c) ** 2 + 0.25))


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Residual, rank and sharpness for three kinds of values; trained; the shear; the divisors."""
    drawing, axes = style.figure(columns=3, rows=2, width=4.9, height=3.9)
    relative, rank, sharp, trained, circle, divisors = axes
    depth = data["relative_on"].shape[-1] - 1
    for ax, quantity, x in (
        (relative, "relative", np.arange(depth + 1)), (rank, "rank", np.arange(depth + 1)),
        (sharp, "sharp", data["scales"]),
    ):  # fmt: skip
        for norm in NORMS:
            for index, kind in enumerate(KINDS):
                _band(ax, x, data[f"{quantity}_{norm}"][:, index], kind, norm)
    for norm in NORMS:
        values = data[f"trained_relative_{norm}"]
        _band(trained, np.arange(values.shape[1]), values, "trained", norm)
    if np.isnan(data["trained_relative_on"]).all():
        trained.text(0.5, 0.5, "checkpoint not installed", ha="center", transform=trained.transAxes)
    # The shear on the circle, and the divisors of LayerNorm.
    starts, layers = len(data["circle_on"]), np.arange(data["circle_on"].shape[1])
    for norm, meaning in (("off", "reference"), ("on", "measured")):
        for index, run in enumerate(data[f"circle_{norm}"]):
            circle.plot(layers, run, color=style.colour(meaning), linestyle=DASH[norm], linewidth=1,
                        label=None if index else f"LayerNorm {norm}")  # fmt: skip
    circle.plot(layers, -np.log(2) * layers, color=style.colour("theory"), linestyle=":", label="half of it per layer")
    for index, kind in enumerate(KINDS):
        style.bands(divisors, np.arange(1, depth + 1), *data["divisors_on"][:, index], marker=MARKER[kind],
                    label=LABELS[kind], color=style.colour(COLOURS[kind]), alpha=0.15)  # fmt: skip
    divisors.axhline(float(data["shear_divisors"]), color=style.colour("measured"), label="shear, at rest")
    style.reference(divisors, y=1e-6, text="rounding")
    divisors.set_ylim(1e-7, 5)

    for ax in (relative, sharp, trained):
        ax.set_yscale("symlog", linthresh=1, linscale=0.5)
    size, cube = "log ‖res‖/‖X‖ (nats)", "Random W_QK: the cube, with or without"
    style.panel(relative, "layer", size, cube, legend="lower left")
    style.panel(rank, "layer", "‖X‖_F²/‖X‖₂²", "Stable rank", log="y")
    style.panel(sharp, "std of the first layer's logits", f"log ‖res‖/‖X‖ after {depth} layers", "Sharper attention")
    sharp.set_xscale("log", base=2)
    sharp.set_ylim(top=1)
    style.panel(trained, "layer", size, "Trained W_QK and values", legend="lower left")
    style.panel(circle, "layer", size, f"Shear as value matrix, causal, {starts} starts", legend="lower left")
    style.panel(divisors, "layer", "log (max/min) over tokens", "LayerNorm's divisors", log="y", legend="center right")
    for ax in (relative, rank, trained, circle, divisors):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing


def _band(ax: Axes, x: np.ndarray, values: np.ndarray, kind: str, norm: str) -> None:
    """Quantiles of a kind of value matrix, dashed without LayerNorm."""
    color, (low, median, high) = style.colour(COLOURS[kind]), values
    ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    ax.plot(x, median, color=color, linestyle=DASH[norm], marker=MARKER[kind] if norm == "on" else None,
            label=f"{LABELS[kind]}, LayerNorm {norm}")  # fmt: skip


def _cube(data: Mapping[str, np.ndarray]) -> Measured:
    """Exponents of the fall without and with LayerNorm, and by how many layers LayerNorm delays it."""
    exponents, errors, where = [], [], []
    for norm in NORMS:
        exponents += data[f"exponent_{norm}_mean"].tolist()
        errors += data[f"exponent_{norm}_standard_error"].tolist()
        where += [f"{LABELS[kind]}, LayerNorm {norm}" for kind in KINDS]
    for norm in NORMS:
        texts = data[f"trained_exponent_{norm}"]
        exponents.append(texts.mean())
        errors.append(texts.std(ddof=1) / np.sqrt(texts.size) if texts.size > 1 else 0.0)
        where.append(f"trained, LayerNorm {norm}")
    # log₃ of log ‖res‖/‖X‖ without over with it
    delays = np.log(data["relative_off"][1][:, -1] / data["relative_on"][1][:, -1]) / np.log(3)
    trained = np.log(data["trained_relative_off"][1, -1] / data["trained_relative_on"][1, -1]) / np.log(3)
    return Measured(
        [*exponents, *delays],
        standard_error=[*errors, *np.zeros(delays.size)],
        where=[*where, *(f"delay, {LABELS[kind]}" for kind in KINDS)],
        reads=[exponents, delays],
        left_out=data["unknown"],
        numbers={
            "least": min(exponents),
            "most": max(exponents),
            "least_delay": min(delays),
            "most_delay": max(delays),
            "trained": f"{trained:.2f}",
        },
    )


def _divisors(data: Mapping[str, np.ndarray]) -> Measured:
    """Median log(largest/smallest divisor of the tokens), by value matrix and layer."""
    divisors = data["divisors_on"][1]
    where = [f"{LABELS[kind]}, layer {layer + 1}" for kind in KINDS for layer in range(divisors.shape[1])]
    return Measured(divisors, standard_error=data["divisors_on_error"].ravel(), where=where, left_out=data["unknown"])


def _last_residuals(data: Mapping[str, np.ndarray]) -> Measured:
    """Median log ‖res‖/‖X‖ at the last layer of random networks and of a random model, with LayerNorm."""
    return Measured(
        np.append(data["relative_on"][1][:, -1], data["initial_relative_on"][1][-1]),
        standard_error=np.append(data["relative_on_error"][:, -1], data["initial_relative_on_error"][-1]),
        where=[*(LABELS[kind] for kind in KINDS), "the shape of all-MiniLM-L6-v2"],
        left_out=data["unknown"],
    )


def _sharp_residuals(data: Mapping[str, np.ndarray]) -> Measured:
    """The same by the size of the first logits, at the sizes at which the residual is known in every network."""
    known = np.sum(data["sharp_on_left_out"], axis=0) == 0
    sizes = [f"{scale:g}" for scale in data["scales"][known]]
    return Measured(
        data["sharp_on"][1][:, known],
        standard_error=data["sharp_on_error"][:, known].ravel(),
        where=[f"{LABELS[kind]}, std {size}" for kind in KINDS for size in sizes],
        numbers={"sizes": ", ".join(sizes)},
    )


def _push_over_factor(data: Mapping[str, np.ndarray]) -> Measured:
    """Growth of a push in a layer over (cosh s + r − 1)/sinh s."""
    s, rank = np.array(PUSHED)[:, None], data["push_ranks"]
    return Measured(
        (data["push_growth"] / ((np.cosh(s) + rank - 1) / np.sinh(s))).ravel(),
        where=[f"s = {each:g}, rank {r}" for each in PUSHED for r in rank],
    )


def _ranks(data: Mapping[str, np.ndarray]) -> list[str]:
    return [f"rank {rank}" for rank in data["ranks"]]


summary = functools.partial(published, source="collapse-summary", place="finding 3", needs="parts")
shear = functools.partial(
    law,
    proof="proved",
    place="docs/skip_norm_mlp.md, LayerNorm and the value matrices",
    neighbours=["wu2024"],
    hypotheses=r"causal uniform attention, two tokens, $W_V\thinspace W_O$ a shear of slope $-2$, $\varepsilon=0$",
)
NETWORKS = "attention without skips and MLPs, Gaussian $W_{QK}$, one head, no mask; a LayerNorm after every layer"
EXPONENTS = len(NORMS) * (len(KINDS) + 1)  # of random networks and of the trained model
LAST, STARTS = PRESETS["quick"].circle_depth, PRESETS["quick"].circle_count  # of all presets
ROWS = (
    summary(
        "norm-cube",
        "LayerNorm has no effect on rank collapse.",
        _cube,
        near([3.0] * EXPONENTS + [0.0] * len(KINDS), 0.5),
        hypotheses=f"{NETWORKS}, or none; the attention of all-MiniLM-L6-v2",
        interval_from=r"our tolerance: an exponent of $3\pm0.5$, a delay of less than half a layer",
        shown="exponents <least:.2f> … <most:.2f>; delays <least_delay:.2f> … <most_delay:.2f> layers",
        note=r"$\log\thinspace\lVert \mathrm{res}\rVert$ still triples at the last layer; it is delayed by about one "
        "layer, and in the trained heads, which this point leaves out, by <trained>; "
        "Wu et al. 2024 disagree in general",
    ),
    summary(
        "norm-rescaling",
        "LayerNorm only scales and shifts, which is the same as other weights and biases, and so has no bearing on "
        "rank collapse.",
        _divisors,
        at_most(EQUAL),
        hypotheses=f"LayerNorm by token, as models have it; {NETWORKS}",
        interval_from="it is so only if all tokens have one divisor; our tolerance: equal to 1 %",
        note=r"median of log(largest/smallest divisor of the tokens): they stand on the left of $P\thinspace "
        r"X\thinspace W$, where no weight takes them in, and agree near collapse; a normalisation by feature stands "
        "on the right, where it is taken in exactly; for the conclusion see norm-cube",
    ),
    published(
        "norm-affine-rank",
        "LayerNorm preserves the affine rank of a set of tokens exactly.",
        lambda data: Measured(
            data["affine_rank"][:, 1] - data["affine_rank"][:, 0],
            where=["three tokens on a line", "random tokens, fewer than features"],
        ),
        (0, 0),
        formula=True,
        source="cirrincione2026",
        place="abstract of the listing",
        hypotheses="LayerNorm by token; affine rank is read as the rank of the differences of tokens",
        interval_from="an integer",
        elsewhere="the paper, of which the abstracts alone were read, defines affine rank; that in version 1 adds that "
        "the rank of the matrix is kept in the case without bias",
        note=r"measured: rank after less rank before; $a$, $a+b$, $a+2b$ with $a=(1,2,0,-1)$, $b=(\frac{1}{2},-1,1,3)$"
        " go from a line to a plane; what is kept is the linear rank of tokens less their means over features, and "
        "so the affine rank where these are linearly independent",
    ),
    published(
        "norm-random",
        r"LayerNorm alone keeps random models from $\lVert X-1\bar{x}^{\top}\rVert\to0$.",
        _last_residuals,
        at_least(np.log(HELD)),
        source="wu2024-figure",
        place="caption of figure 2",
        hypotheses=f"{NETWORKS}; the model, masks and arithmetic of the figure are not known here",
        interval_from=r"our tolerance: a tenth of $\lVert X\rVert$",
        note=r"median of $\log\thinspace\lVert \mathrm{res}\rVert/\lVert X\rVert$ at the last layer; in exact "
        "arithmetic it goes to zero in our networks; plain float32 stops at its rounding, about $e^{-16}$; the "
        "figure's model is unknown to us",
    ),
    published(
        "norm-sharp",
        "For some classes of value matrices tokens still collapse under LayerNorm.",
        _sharp_residuals,
        at_most(np.log(HELD)),
        formula=True,
        source="wu2024",
        place="abstract",
        hypotheses=f"{NETWORKS}; value matrices: the identity, a rotation, Gaussian; first logits of standard "
        "deviation <sizes>, the sizes at which the residual is known in every network",
        interval_from=r"our tolerance: $\lVert \mathrm{res}\rVert$ below a tenth of $\lVert X\rVert$",
        note=r"median of $\log\thinspace\lVert \mathrm{res}\rVert/\lVert X\rVert$ at the last layer, by value matrix "
        "and size of the first logits; the source adds that the rate is exponential, which is not judged",
    ),
    published(
        "norm-equilibria",
        "With suitable value matrices, self-attention with LayerNorm rests at points of every rank between one and "
        "full.",
        lambda data: Measured(
            np.append(data["polytope_moved"], data["shear_error"]), where=[*_ranks(data), "rank 2, causal"]
        ),
        at_most(ROUNDING),
        formula=True,
        source="wu2024",
        place="abstract",
        hypotheses=r"$\pm\sqrt{d}\thinspace u_k$ with identity values in full attention; a shear under a causal mask",
        interval_from="rest; rounding of float32",
        note="how far one layer moves the tokens, over their size; the constructions are ours",
    ),
    shear(
        "norm-shear-held",
        "Under a shear as value matrix LayerNorm keeps 5 of 12 starts at rank 2 at every depth.",
        lambda data: Measured(data["held"]),
        near(SHARE, 2 / STARTS),
        interval_from=f"two of {STARTS} starts",
        note=f"second token on a grid of {STARTS} angles of the circle",
    ),
    shear(
        "norm-shear-off",
        r"Without LayerNorm layer $k$ of the same weights changes $\log(\lVert \mathrm{res}\rVert/\lVert X\rVert)$ by "
        r"$-\log2+\log(((k+c)^{2}+1/4)/((k-1+c)^{2}+1/4))/2$, $c=\tan(\theta/2)/2$, up to terms in "
        r"$k\thinspace 2^{-k}$: from every start $\theta$ the residual is halved in the limit.",
        lambda data: Measured(data["fall_error"], numbers={"fall": data["fall"]}),
        at_most(FIGURES),
        after_result=True,
        interval_from=rf"rounding of float64 and $k\thinspace 2^{{-k}}$, at $k={LAST}$; a first run judged halving by "
        "a tolerance of its own",
        note=rf"measured: how far the change at $k={LAST}$ is off, the largest of {STARTS} starts; on their average "
        r"it is <fall:.4f>; the map of differences is a Jordan block with the eigenvalue $\frac{1}{2}$, and the change "
        r"is $-\log2+\log(k/(k-1))$ up to about $\lvert \tan(\theta/2)\rvert/(2k^{2})$ where $k$ is far above "
        r"$\lvert c\rvert$",
    ),
    law(
        "norm-polytope-repels",
        r"A push that the tokens $\pm\sqrt{d}\thinspace u_k$, $k\leq r$, share, along a direction outside their span, "
        r"grows by $(\cosh s+r-1)/\sinh s\gt1$ in every layer.",
        _push_over_factor,
        near(1, EXACT_PUSH),
        proof="proved",
        place="docs/skip_norm_mlp.md, LayerNorm and the value matrices",
        neighbours=["wu2024"],
        hypotheses=r"identity values, full attention, LayerNorm after every layer; logits "
        r"$\frac{s}{d}\thinspace x_i\cdot x_j$, one token to each corner, $r\leq d-2$; a small push",
        interval_from="the factor is exact to first order in the push; the square of what it grows to",
        note="measured over the factor",
    ),
    law(
        "norm-polytope-unstable",
        r"Pushed by a thousandth, the tokens $\pm\sqrt{d}\thinspace u_k$ collapse within "
        f"{Spec().circle_depth} layers at $s=1$.",
        lambda data: Measured(data["polytope_pushed"], where=_ranks(data)),
        at_most(HELD),
        proof="measured",
        place="docs/skip_norm_mlp.md, LayerNorm and the value matrices",
        neighbours=["wu2024"],
        hypotheses=r"identity values, full attention, LayerNorm after every layer; logits "
        r"$\frac{1}{d}\thinspace x_i\cdot x_j$",
        interval_from=r"$\lVert \mathrm{res}\rVert$ below a tenth of $\lVert X\rVert$",
        note="at the last layer; from $s=2$ on few corners need more layers, because the factor of "
        "norm-polytope-repels is nearer to 1",
    ),
)
