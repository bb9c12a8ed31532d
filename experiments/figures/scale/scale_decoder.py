"""One scale for all rows of a decoder, row i seeing i keys: for which n to take it, and what it loses."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import experiments.lib.figure
from experiments.figures._peaks import jackknife, peaks
from experiments.figures._samples import draw
from experiments.ledger import Measured, at_least, published
from experiments.lib import style
from experiments.lib.figure import About, Data
from rc_jax import scale

SU = "su2023scale"
HALF = 0.5
GEOMETRIC = float(np.exp(-1))  # the geometric mean of many rows 1 … L is L/e
FRIENDLY = 0.9  # a row with so much of its own largest gradient: our reading of "friendly"
DIM = 128
BATCHES = 8
LONGEST = "L, longest row"
LAWS = ("Gaussian", f"cosine, d = {DIM}")
CHOICES = ("n = L/2", "harmonic mean", "best, floored")
ABOUT = About(
    title="One scale for a decoder: what n = L/2 gives, and the harmonic and geometric means of the rows",
    caption=(
        "Rows 2 … L of a decoder with one α for all. Annealed: row i has the gradient α(1 − C(α)/i), below zero where "
        "the row is short; floored: that counts as zero; losses are shares of each row's own annealed maximum. "
        "Typical: the one α that maximises the mean logarithm of the simulated gradient of Gaussian rows, as the row "
        "whose own typical optimum it is; bars are 2 standard errors."
    ),
    formula="mean over rows of α(1 − C(α)/i) = α(1 − C(α)/n_h),  n_h = (L − 1)/(H_L − 1)",
    topic="scale",
    minutes={"smoke": 0.15, "quick": 0.3, "full": 15},
)


class Spec(experiments.lib.figure.Spec):
    """Longest rows 2^first … 2^last for the closed forms; to 2^simulated with so many samples for typical rows."""

    dtype: str = "float64"
    first: int = 4
    last: int = 17
    points: int = 400
    simulated: int = 12
    samples: int = 192


PRESETS = {
    "smoke": Spec(last=9, points=120, simulated=6, samples=32),
    "quick": Spec(),
    "full": Spec(last=20, points=1000, simulated=17, samples=1024),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Losses for every longest row, law and choice of α; best single n; the same for typical rows by simulation."""
    lengths = 2 ** np.arange(spec.first, spec.last + 1)
    rows = np.arange(2, lengths[-1] + 1).astype(float)
    laws = [_law(rows, lengths, dim, spec.points) for dim in (None, DIM)]
    data = {name: np.stack([each[name] for each in laws]) for name in laws[0]}
    return {"lengths": lengths, "harmonic": _harmonic(lengths)} | data | _typical(spec)


def _harmonic(lengths: np.ndarray) -> np.ndarray:
    """Harmonic mean of the numbers of keys of rows 2 … L: the best single n for the mean annealed gradient."""
    return (lengths - 1) / np.cumsum(1 / np.arange(2.0, lengths[-1] + 1))[lengths - 2]


def _law(rows: np.ndarray, lengths: np.ndarray, dim: int | None, points: int) -> dict[str, np.ndarray]:
    """For one law of scores: losses (choice, length), and the best single n for the mean gradient and the mean loss."""
    # the best scale and gradient of every row, and the three choices of one scale for all of them
    optimum = scale.optimise_scale(rows, dim)
    best, own = np.asarray(optimum.value), np.asarray(optimum.scale)
    half = np.asarray(scale.optimal_scale(lengths / 2, dim))
    mean = np.asarray(scale.optimal_scale(_harmonic(lengths), dim))
    grid = np.geomspace(own[0], own[-1], points)
    spread = np.exp(np.asarray(scale.log_concentration(grid, dim)))  # C(α): a row's gradient is α(1 − C/i)
    floored = np.full((lengths.size, points), np.nan)
    summed = np.full((lengths.size, points), np.nan)
    for j, (alpha, c) in enumerate(zip(grid, spread, strict=True)):
        gradient = alpha * (1 - c / rows)
        kept = np.cumsum(np.maximum(gradient, 0) / best)[lengths - 2]
        floored[:, j] = 1 - kept / (lengths - 1)
        summed[:, j] = np.cumsum(gradient)[lengths - 2] / (lengths - 1)
    at_floored, at_summed = (peaks(grid, curves) for curves in (-floored, summed))
    choices = np.stack([half, mean, at_floored])
    # losses (choice, row) of the rows of each length
    c = np.exp(np.asarray(scale.log_concentration(choices, dim)))
    losses = [1 - choices[:, [j]] * (1 - c[:, [j]] / rows[: n - 1]) / best[: n - 1] for j, n in enumerate(lengths)]
    some = slice(None, None, max(1, rows.size // 4000))
    return {
        "choices": choices,
        "mean_floored": np.stack([np.minimum(loss, 1).mean(1) for loss in losses], axis=1),
        "friendly": np.array([np.mean(loss[0] <= 1 - FRIENDLY) for loss in losses]),
        "halved": np.array([np.mean(loss[0] <= 1 - HALF) for loss in losses]),
        "best_n": np.interp(at_floored, own, rows),
        "best_sum_n": np.interp(at_summed, own, rows),
        "profile": losses[-1][:, some],
        "profile_n": rows[some],
    }


def _typical(spec: Spec) -> dict[str, np.ndarray]:
    """Gaussian rows: mean logarithm of the gradient for rows at half octaves, and the one α best for all of them."""
    rows = np.unique(np.round(2 ** (np.arange(2, 2 * spec.simulated + 1) / 2))).astype(int)
    edges = np.concatenate([[1.5], np.sqrt(rows[1:] * rows[:-1]), [rows[-1] + 0.5]])
    alpha = np.geomspace(0.7, 7, 41)
    lengths = 2 ** np.arange(spec.first, spec.simulated + 1)
    # the part of rows 2 … L that each of these rows stands for
    weights = np.diff(np.minimum(edges, lengths[:, None] + 0.5))
    weights /= weights.sum(1, keepdims=True)

    def one(key: jax.Array) -> jax.Array:
        scores = jax.random.normal(key, (int(rows[-1]),), jnp.float32)
        return jnp.stack([scale.log_gradient_norm(scores[: int(n)], jnp.asarray(alpha, jnp.float32)) for n in rows])

    key = jax.random.key(spec.seed)
    count = spec.samples // BATCHES
    batches = np.stack([draw(one, jax.random.fold_in(key, i), count, batch_size=8).mean for i in range(BATCHES)])

    # the best single n of the mean over rows, with a jackknife over batches for its error
    def shares(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        own = peaks(alpha, curves)
        line = np.polyfit(np.log(np.log(rows[4:])), np.log(own[4:]), 2)  # the row that an α suits, smoothly
        fine = np.linspace(np.log(np.log(8)), np.log(np.log(rows[-1])), 2000)
        means = weights @ curves
        best = np.interp(np.log(peaks(alpha, means)), np.polyval(line, fine), fine)
        return np.exp(np.exp(best)) / lengths, weights @ curves.max(1) - means.max(1)

    share, loss = shares(batches.mean(0))
    error = jackknife(np.stack([shares(np.delete(batches, i, 0).mean(0))[0] for i in range(BATCHES)]))
    return {"typical_lengths": lengths, "typical_share": share, "typical_error": error, "typical_loss": loss}


def plot(data: Data) -> Figure:
    """Loss row by row, mean loss against L, its worst row, and the best single n."""
    drawing, axes = style.figure(columns=2, rows=2)
    for panel, ax in zip((_profile, _means, _shares, _typical_panel), axes, strict=True):
        panel(ax, data)
    return drawing


def _profile(ax: Axes, data: Data) -> None:
    length = data["lengths"][-1]
    for i, name in enumerate(CHOICES):
        look = style.cycle(i)
        ax.plot(
            data["profile_n"][0] / length, data["profile"][0, i], color=look["color"], linestyle=look["linestyle"],
            label=f"{name}, α = {data['choices'][0, i, -1]:.2f}",
        )  # fmt: skip
    title = f"Gaussian rows, L = $2^{{{int(np.log2(length))}}}$: short rows lose most"
    style.panel(ax, "i/L, row", "loss of the row, share of its best gradient", title, log="x", legend="lower left")
    ax.set_ylim(-0.02, 1.05)
    ax.set_xlim(1e-4, 1.3)


def _means(ax: Axes, data: Data) -> None:
    for i, name in enumerate(CHOICES):
        look = style.cycle(i)
        for j, scores in enumerate(LAWS):
            ax.plot(
                data["lengths"], data["mean_floored"][j, i], color=look["color"], marker=look["marker"],
                linestyle=style.DASHES[j], mfc=look["color"] if j == 0 else "none", label=f"{name}, {scores}",
            )  # fmt: skip
    ax.set_ylim(0, 0.22)
    height, title = "mean loss, negative gradients as zero", "What one α for all rows loses"
    style.panel(ax, LONGEST, height, title, log="x", base=2, legend="below", columns=2)


def _shares(ax: Axes, data: Data) -> None:
    lengths = data["lengths"]
    style.reference(ax, y=HALF, text="in the article: ½", meaning="published")
    harmonic = data["harmonic"] / lengths
    ax.plot(lengths, harmonic, color=style.colour("theory"), label="harmonic mean of the rows, over L")
    # closed forms: circles for the sum of annealed gradients, squares where negative ones count as zero
    for j, scores in enumerate(LAWS):
        tint = style.cycle(j)["color"]
        for name, marker, sense in (("best_sum_n", "o", "annealed"), ("best_n", "s--", "floored")):
            share, inside = data[name][j] / lengths, "none" if j else tint
            ax.plot(lengths, share, marker, mfc=inside, color=tint, label=f"{sense}, {scores}")
    ax.set_ylim(0, 0.9)
    height, title = "best single n, as a share of L", "Which n to take the one α for"
    style.panel(ax, LONGEST, height, title, log="x", base=2, legend="upper right")


def _typical_panel(ax: Axes, data: Data) -> None:
    lengths = data["typical_lengths"]
    style.reference(ax, y=HALF, text="in the article: ½", meaning="published")
    style.reference(ax, y=GEOMETRIC, meaning="theory")
    ax.annotate("geometric mean: 1/e", (lengths[0], GEOMETRIC - 0.09), fontsize=9, color=style.colour("theory"))
    ax.errorbar(
        lengths, data["typical_share"], 2 * data["typical_error"], color=style.colour("measured"), marker="o",
        linestyle="none", label="best single n, as a share of L",
    )  # fmt: skip
    ax.plot(lengths, data["typical_loss"], "^:", color=style.colour("corrected"), label="mean loss there, nats")
    ax.set_ylim(0, 0.9)
    title = "Typical rows: mean logarithm of the gradient"
    style.panel(ax, LONGEST, "share of L; nats", title, log="x", base=2, legend="upper right")


def _friendly_rows(data: Data) -> Measured:
    """The share of rows with nearly all of their own largest gradient at n = L/2."""
    loss = data["mean_floored"][:, 0]
    return Measured(
        data["friendly"].ravel(),
        where=[f"{scores}, L = 2^{int(np.log2(length))}" for scores in LAWS for length in data["lengths"]],
        numbers={"halved": data["halved"].min(), "lowest": loss.min(), "highest": loss.max()},
    )


ROWS = (
    published(
        "decoder-friendly",
        r"One scale may serve all rows of a decoder, for example that of $n=L_{\max}/2$, which is "
        "rather friendly to the gradient of most tokens.",
        _friendly_rows,
        at_least(HALF),
        formula=True,
        source=SU,
        place="section of further thoughts, on decoders, 2023-10-22",
        hypotheses=r"rows $2\thinspace\ldots\thinspace L$; annealed gradient of Gaussian scores and of cosines at "
        "$d=128$",
        interval_from=f"our reading: friendly is {FRIENDLY:.0%} of a row's own largest gradient, most is half",
        note="measured: the share of rows; half of its own largest has a share of <halved:.2f> "
        "or more; mean loss <lowest:.3f> … <highest:.3f>, negative gradients as zero",
    ),
)
