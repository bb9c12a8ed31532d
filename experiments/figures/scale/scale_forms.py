"""Normalised queries and keys, and scales that grow with n: published forms of attention against the best scale."""

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import experiments.lib.figure
from experiments.figures.scale.parts import _form_layers as layers
from experiments.figures.scale.parts import _scale_forms as forms
from experiments.figures.scale.parts._scale_forms import FORMS, LAWS, YARN_AT
from experiments.ledger import Measured, at_least, law, published
from experiments.lib import style
from experiments.lib.figure import About, Data
from rc_jax import scale

PAGE = "docs/scale_forms.md"
FIRST, LAST = 128, 65536  # lengths over which one growth law is to do
ENOUGH = 0.9  # of the largest typical gradient
CLAIMED_DIM = 64
SCORES, KEYS = ("dot products", "cosines"), "n, number of keys"
FACTORS = np.geomspace(2, 32, 9)
BASES = (512, 4096, 32768)
FEWEST = 3  # lengths between them, without which no law of growth is judged
MIDDLES = np.geomspace(0.5, 16, 401)  # α at the middle of FIRST … LAST
ABOUT = About(
    title="Forms of attention's scale, on equal terms",
    caption=(
        "Published forms run through the same layer (points) on the same random queries and keys, heads of 64; lines "
        "are their formulas. Top left: the factor each puts on scores of variance one, between the annealed and the "
        "typical optimum (band). Top right: the geometric mean over rows of the gradient α(1 − Σp²) that it lets "
        "through, over the largest that one scale for all rows can reach. Bottom left: the least such share over "
        "n = 128 … 65 536 for three laws of growth, against their α in the middle. Bottom right: what YaRN multiplies "
        "logits by when texts grow by a factor, what the optimum grows by, and what log n would."
    ),
    formula="share = exp(E log g(α) − max E log g),  g = α(1 − Σp²);   YaRN: (1 + 0.1 ln s)²;   SSMax: s log n",
    topic="scale",
    minutes={"smoke": 0.2, "quick": 0.5, "full": 6},
)


class Spec(experiments.lib.figure.Spec):
    """Lengths 2^first … 2^17 and widths simulated; lengths and draws through the layer; trained texts (0: none)."""

    first: int = 4
    step: int = 1
    dims: tuple[int, ...] = (32, 64, 128)
    samples: int = 256
    sizes: tuple[int, ...] = (64, 1024)
    draws: int = 8
    factors: tuple[int, ...] = (4, 32)
    texts: int = 6
    tokens: int = 64


PRESETS = {
    "smoke": Spec(step=3, first=7, dims=(64,), samples=16, sizes=(128,), draws=3, factors=(), texts=0),
    "quick": Spec(),
    "full": Spec(samples=8192, sizes=(16, 64, 256, 1024, 4096), draws=16, factors=(2, 4, 8, 16, 32), texts=48),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Factors and shares of every form by scores, width and n; the layer's own; growth laws; YaRN."""
    key = jax.random.key(spec.seed)
    n = 2 ** np.arange(spec.first, 18, spec.step)
    curves = forms.typical_curves(jax.random.fold_in(key, 0), n, spec.dims, spec.samples)
    typical, most = forms.tops(curves)
    law = np.array([int(form.cosine) for form in FORMS])
    alpha = np.stack([[np.broadcast_to(form.alpha(n, d), n.shape) for d in spec.dims] for form in FORMS])
    return {
        "n": n, "dims": np.array(spec.dims), "alpha": alpha, "typical": typical,
        "share": np.exp(forms.at_scale(curves[law], alpha) - most[law]),
        "fading": fading(n.astype(float)), **_annealed(n.astype(float), spec.dims),
        **forms.growth_laws(curves, n, (FIRST, LAST), MIDDLES),
        **layers.every_run(spec, jax.random.fold_in(key, 1), CLAIMED_DIM),
    }  # fmt: skip


def fading(n: np.ndarray) -> np.ndarray:
    """Largest weight of n scores, −2 but for one of 3, under softmax and under SSMax with s = 0.43: (form, n)."""
    return np.stack([1 / (1 + (n - 1) * np.exp(-5 * scale)) for scale in (np.ones_like(n), forms.LEARNED * np.log(n))])


def _annealed(n: np.ndarray, dims: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Annealed optima: by scores, width and n; their growth with longer texts."""
    widths = np.array(dims, float)[:, None]
    scaled = np.asarray(scale.optimal_scale(n, widths)) / np.sqrt(widths)
    gaussian = np.broadcast_to(scale.optimal_scale_exact(n), scaled.shape)
    longer = np.asarray(scale.optimal_scale_exact(np.outer(BASES, np.append(1, FACTORS))))
    return {"annealed": np.stack([gaussian, scaled]), "asked": longer[:, 1:] / longer[:, :1]}


def plot(data: Data) -> Figure:
    """Factors; shares; laws of growth; YaRN."""
    drawing, (factors, shares, laws, longer) = style.figure(columns=2, rows=2, width=6.2, height=4.6)
    _plot_factors(factors, data)
    _plot_shares(shares, data)
    _plot_laws(laws, data)
    _plot_yarn(longer, data)
    return drawing


def _look(index: int) -> dict:
    if FORMS[index].key == "annealed":
        return {"color": style.colour("theory"), "marker": "", "linestyle": style.DASHES[1]}
    return style.cycle(index)


def _plot_factors(ax: Axes, data: Data) -> None:
    n, at = data["n"], list(data["dims"]).index(CLAIMED_DIM)
    # bands between the two optima, lines of the formulas, and points of the layers
    for scores, label, shade in ((0, "dot products", 0.28), (1, "cosines", 0.13)):
        ax.fill_between(
            n, data["annealed"][scores, at], data["typical"][scores, at], color=style.colour("reference"), alpha=shade,
            linewidth=0, label=f"annealed to typical optimum, {label}",
        )  # fmt: skip
    for index, form in enumerate(FORMS[:-1]):
        look = _look(index)
        ax.plot(n, data["alpha"][index, at], color=look["color"], linestyle=look["linestyle"], linewidth=1.5)
        seen = data["run"] == form.key
        ax.plot(data["run_n"][seen], data["run_alpha"][seen], look["marker"], color=look["color"])
    ax.plot([], [], "o", color=style.colour("reference"), label="through the layer; forms as on the right")
    ax.set_yscale("log")
    ax.set_yticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    ax.set_yticks([], minor=True)
    title = f"What forms put on scores, d = {CLAIMED_DIM}"
    style.panel(ax, KEYS, "α, factor on scores of variance one", title, log="x", base=2, legend="below")


def _plot_shares(ax: Axes, data: Data) -> None:
    at = list(data["dims"]).index(CLAIMED_DIM)
    for index, form in enumerate(FORMS):
        look = _look(index)
        ax.plot(data["n"], data["share"][index, at], **look, markersize=4, linewidth=1.5, label=form.name)
    style.reference(ax, y=ENOUGH, text="90 %")
    ax.set_ylim(0, 1.03)
    title = f"What they let through, d = {CLAIMED_DIM}"
    style.panel(ax, KEYS, "share of the largest typical gradient", title, log="x", base=2, legend="below", columns=3)


def _plot_laws(ax: Axes, data: Data) -> None:
    at = list(data["dims"]).index(CLAIMED_DIM)
    # a colour for each law, a dash for each kind of scores
    for index, growth in enumerate(LAWS):
        color = style.cycle(index)["color"]
        for kind, dash in enumerate(style.DASHES[:2]):
            least = data["law_least"][index, kind, at]
            ax.plot(MIDDLES, least, color=color, linestyle=dash, label=f"{growth}, {SCORES[kind]}")
    style.reference(ax, y=ENOUGH, text="90 %")
    grown = f"α at n = {round((FIRST * LAST) ** 0.5)}, then grown by the law"
    title = f"The least share, n = {FIRST} … {LAST}, d = {CLAIMED_DIM}"
    style.panel(ax, grown, "least share over n", title, log="x", legend="below", columns=3)
    ax.set_xticks([0.5, 1, 2, 4, 8, 16], ["0.5", "1", "2", "4", "8", "16"])
    ax.set_xticks([], minor=True)
    ax.set_ylim(0, 1.03)


def _plot_yarn(ax: Axes, data: Data) -> None:
    # what YaRN multiplies by, what the optimum asks for, and a factor of log n
    squared, published = forms.yarn(FACTORS), style.colour("published")
    ax.plot(FACTORS, squared, color=published, label="YaRN, (1 + 0.1 ln s)²")
    ax.plot(FACTORS, squared**0.5, color=published, linestyle=style.DASHES[1], linewidth=1.2, label="1 + 0.1 ln s")
    for base, row, color in zip(BASES, data["asked"], style.sequence(len(BASES)), strict=True):
        ax.plot(FACTORS, row, color=color, linestyle=style.DASHES[3], label=f"α*(sN)/α*(N), N = {base}")
    grown = np.log(YARN_AT * FACTORS) / np.log(YARN_AT)
    ax.plot(FACTORS, grown, color=style.colour("reference"), linestyle=style.DASHES[2], label=f"log, N = {YARN_AT}")
    factors = [name.split("-")[1] for name in data["run"] if name.startswith("yarn")]
    if factors:
        seen = [name.startswith("yarn") for name in data["run"]]
        ax.plot(np.array(factors, float), data["run_alpha"][seen], "o", color=published, label="through the layer")
    times, title = "s, how many times longer texts are", "YaRN's temperature, and what is asked"
    style.panel(ax, times, "factor on the logits", title, log="x", base=2, legend="below", columns=3)


def _least_shares(data: Data) -> Measured:
    """The least share of each law of growth at its best factor; not known of fewer than `FEWEST` lengths."""
    cases = [f"{scores}, d = {dim}" for scores in SCORES for dim in data["dims"]]
    lengths = int(((data["n"] >= FIRST) & (data["n"] <= LAST)).sum())
    return Measured(
        data["law_worst"].ravel() if lengths >= FEWEST else np.full(data["law_worst"].size, np.nan),
        where=[
            f"{name}, {case}"
            for name in ("constant", "in proportion to √log n", "in proportion to log n")
            for case in cases
        ],
    )


def _largest_weights(data: Data) -> Measured:
    """The largest weight of figure 1's scores: of softmax at the largest n, and what SSMax's lacks of 1 at every n."""
    long = data["n"] <= LAST
    n, (softmax, ssmax) = data["n"][long], data["fading"][:, long]
    return Measured([softmax[-1], *(1 - ssmax)], where=[f"softmax, n = {n[-1]}", *(f"n = {m}" for m in n)])


ROWS = (
    law(
        "forms-law",
        r"A constant scale, one in proportion to $\sqrt{\log n}$ and one in proportion to $\log n$, each with its "
        f"best factor, let at least {ENOUGH:.0%} of the largest typical gradient of random scores through from "
        f"$n={FIRST}$ to {LAST}.",
        _least_shares,
        at_least(ENOUGH),
        proof="measured",
        place=PAGE,
        interval_from="our tolerance: nine tenths",
        neighbours=["su2023scale", "su2021entropy"],
        hypotheses=f"independent normal queries and keys of width {', '.join(map(str, Spec().dims[:-1]))} and "
        f"{Spec().dims[-1]}",
        note="narrower heads let less through: cosines of width 16 about 0.82 with a constant scale and 0.93 with "
        r"$\sqrt{\log n}$",
    ),
    published(
        "forms-ssmax-fading",
        "As the number of scores grows softmax's largest weight falls towards 0, and SSMax keeps it near 1.",
        _largest_weights,
        (0, 1 - ENOUGH),
        formula=True,
        source="nakanishi2025",
        place="abstract and figure 1",
        hypotheses=f"figure 1's scores: $-2$ but for one of 3; $s={forms.LEARNED}$",
        interval_from="our tolerance: a tenth from 0 and from 1",
        note="measured: softmax at the largest $n$, then 1 less SSMax",
    ),
)
