"""Why the last softmax needs no 1/√d: the gradient of its loss does not stop where it is sharp and wrong."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures import _random_rows
from experiments.ledger import Measured, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import scale

PAGE = "docs/anatomy.md"
ABOUT = figure.About(
    title="The last softmax",
    caption=(
        "Sum of the magnitudes of a loss's gradient by the logits αs of a row of normal scores. The gradients are "
        "cross-entropy's p − y, squared error's J(p − y), and J times a random direction, as behind attention's "
        "softmax. Lines are means (thick), medians (thin) and the laws of sharp rows. First: the label is another than "
        "the largest score's. Second: it is the largest's. Third: how long gradient descent takes to undo a wrong lead "
        "between two classes."
    ),
    formula="∂L/∂(αs) = p − y;   ∂½|p − y|²/∂(αs) = J(p − y);   wrong lead g: time (g + 1 − e^(−g))/2, or ≈ e^g/4",
    topic="layer",
    minutes={"smoke": 0.04, "quick": 0.06, "full": 1.5},
)
LOSSES = {"cross": "cross-entropy", "squared": "squared error", "inside": "random direction"}
COLOURS = {"cross": "measured", "squared": "published", "inside": "mlp"}
CLOSE = 0.05
NEAR = 0.008  # of a law of sharp rows
SHARP = 20.0  # α from which rows of some sixty scores are sharp
TIED = 1000.0  # α at which what is left out of the laws is below a five-hundredth
SHARP_LAWS = ("squared_right", "squared_wrong", "cross_right")
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Rows of `keys` scores at `points` scales, `ties` with a near tie; wrong leads up to `lead`, undone by `step`."""

    keys: int = 64
    rows: int = 20_000
    ties: int = 2**20
    points: int = 25
    lead: float = 8.0
    step: float = 0.02


PRESETS = {
    "smoke": Spec(rows=512, ties=2**14, points=7, lead=3.0),
    "quick": Spec(),
    "full": Spec(keys=1000, rows=100_000, ties=2**18, points=41, lead=11.0),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Mean, standard error and median over rows of every gradient; times to undo a lead, with their laws."""
    alpha = np.geomspace(0.1, 1000, spec.points)
    rows = _rows(jax.random.key(spec.seed), spec.rows, spec.keys)
    by_alpha = [_norms(a, rows) for a in jnp.asarray(alpha).astype(float)]
    lead, n = np.linspace(spec.lead / 8, spec.lead, 8), spec.keys
    largest = _random_rows.mean_largest(n)
    # Laws of sharp rows by α, and of the times by lead.
    data = {
        "alpha": alpha, "keys": np.asarray(n), "lead": lead,
        "squared_wrong_law": largest * (n + 1) / (2 * (n - 1)) / alpha, "squared_right_law": largest / (2 * alpha),
        "cross_right_law": 2 * np.log(2) * largest / alpha,
        "cross_time_law": (lead + 1 - np.exp(-lead)) / 2, "squared_time_law": _squared_time(lead),
    }  # fmt: skip
    for name, loss in (("cross", _cross), ("squared", _squared)):
        data[f"{name}_time"] = np.asarray(_time(loss, jnp.asarray(lead).astype(float), spec.step))
    for name in by_alpha[0]:
        values = np.stack([np.asarray(each[name], float) for each in by_alpha])
        data[name], data[f"{name}_error"] = values.mean(1), values.std(1, ddof=1) / spec.rows**0.5
        data[f"{name}_median"] = np.median(values, axis=1)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(spec.seed), 1), 8)
    ties = [_near_ties(key, spec.ties // len(keys), n) for key in keys]
    samples = np.stack([np.concatenate([np.asarray(each[name], float) for each in ties]) for name in SHARP_LAWS])
    return data | {"tied": samples.mean(1), "tied_error": samples.std(1, ddof=1) / spec.ties**0.5}


def _rows(key: jax.Array, rows: int, n: int) -> tuple[jax.Array, ...]:
    """Normal scores, a random direction, the largest score's index, and another one's."""
    s = jax.random.normal(jax.random.fold_in(key, 0), (rows, n))
    direction = jax.random.normal(jax.random.fold_in(key, 1), (rows, n)) / n**0.5
    right = s.argmax(-1)
    wrong = (right + jax.random.randint(jax.random.fold_in(key, 2), (rows,), 1, n)) % n
    return s, direction, right, wrong


@jax.jit
def _norms(a: jax.Array, rows: tuple[jax.Array, ...]) -> dict[str, jax.Array]:
    """Sums of magnitudes of the gradients by the logits, for each row."""
    s, direction, right, wrong = rows
    norms = {"inside": jnp.abs(_behind_softmax(jax.nn.softmax(a * s), direction)).sum(-1)}
    for name, label in (("right", right), ("wrong", wrong)):
        norms[f"cross_{name}"], norms[f"squared_{name}"] = _of_label(a, s, label)
    return norms


def _behind_softmax(p: jax.Array, above: jax.Array) -> jax.Array:
    """The gradient above times softmax's Jacobian diag p − ppᵀ."""
    return p * (above - (p * above).sum(-1, keepdims=True))


def _of_label(a: jax.Array, s: jax.Array, label: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same sums for cross-entropy and for squared error."""
    error = scale.cross_entropy_gradient(s, label, a) / a
    return jnp.abs(error).sum(-1), jnp.abs(_behind_softmax(jax.nn.softmax(a * s), error)).sum(-1)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _near_ties(key: jax.Array, rows: int, n: int) -> dict[str, jax.Array]:
    """Unbiased samples of the means over rows at α = `TIED`, over their law E[max s]/α.

    With m the largest of n − 1 scores and φ the normal density, E f(s) = n ∫ E[φ(m + e/α) f(m + e/α, …)] de/α over the
    lead e/α of the largest of n. Rows that count have a lead of about 1/α, so e is drawn from the exponential law.
    """
    others = jax.random.normal(jax.random.fold_in(key, 0), (rows, n - 1))
    lead = jax.random.exponential(jax.random.fold_in(key, 1), (rows,))
    second, most = others.argmax(-1), others.max(-1)
    largest = most + lead / TIED
    s = jnp.concatenate([others, largest[:, None]], axis=1)
    weight = n * jnp.exp(lead) * jnp.exp(-jnp.square(largest) / 2) / math.sqrt(2 * math.pi)
    third = (second + jax.random.randint(jax.random.fold_in(key, 2), (rows,), 1, n - 1)) % (n - 1)
    a = jnp.asarray(TIED, s.dtype)
    cross, right = _of_label(a, s, jnp.full((rows,), n - 1))
    # Of the n − 1 wrong labels one is the second largest, and the others are alike.
    wrong = (_of_label(a, s, second)[1] + (n - 2) * _of_label(a, s, third)[1]) / (n - 1)
    return {"squared_right": weight * right, "squared_wrong": weight * wrong, "cross_right": weight * cross}


def _cross(logits: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(logits)[1]


def _squared(logits: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum((jax.nn.softmax(logits) - jnp.array([0.0, 1.0])) ** 2)


def _time(loss: Callable[[jax.Array], jax.Array], lead: jax.Array, step: float) -> jax.Array:
    """Time in which descent along the gradient of two logits brings the wrong one's lead to zero."""
    slope = jax.vmap(jax.grad(loss))

    def descend(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits, time = state
        middle = logits - step / 2 * slope(logits)
        ahead = logits[:, 0] > logits[:, 1]
        return jnp.where(ahead[:, None], logits - step * slope(middle), logits), time + jnp.where(ahead, step, 0)

    start = jnp.stack([lead, jnp.zeros_like(lead)], 1), jnp.zeros_like(lead)
    return jax.lax.while_loop(lambda state: (state[0][:, 0] > state[0][:, 1]).any(), descend, start)[1]


def _squared_time(lead: np.ndarray) -> np.ndarray:
    """∫ dσ/(4σ³(1 − σ)²) from ½ to σ(g), in partial fractions."""
    s = 1 / (1 + np.exp(-np.stack([0 * lead, lead])))
    antiderivative = 3 * np.log(s / (1 - s)) - 2 / s - 1 / (2 * s**2) + 1 / (1 - s)
    return np.diff(antiderivative, axis=0)[0] / 4


def plot(data: Data) -> Figure:
    """Wrong labels; right labels; time to undo a lead."""
    drawing, (wrong, right, time) = style.figure(columns=3, width=4.9, height=4.4)
    for ax, name in ((wrong, "wrong"), (right, "right")):
        _plot_norms(ax, data, name)
        style.panel(ax, "α, scale of the logits", "Σ|gradient by the logits|", f"The largest score is {name}", log="xy",
                    legend="below", columns=2)  # fmt: skip
        ax.set_ylim(1e-6, 5)
    for name, marker in (("cross", "o"), ("squared", "s")):
        time.plot(data["lead"], data[f"{name}_time_law"], color=style.colour("theory"))
        time.plot(data["lead"], data[f"{name}_time"], marker, color=style.colour(COLOURS[name]), label=LOSSES[name])
    time.plot([], [], color=style.colour("theory"), label="exact")
    style.panel(time, "g, lead of the wrong logit at the start", "time (steps × step size)", "Undoing a wrong lead",
                log="y", legend="below", columns=3)  # fmt: skip
    return drawing


def _plot_norms(ax: Axes, data: Data, name: str) -> None:
    """Means, medians and laws of every loss's gradient where the label is right, or wrong."""
    alpha, sharp = data["alpha"], data["alpha"] >= SHARP / 10
    law: dict[str, Any] = {"color": style.colour("theory"), "linestyle": style.DASHES[2]}
    for loss, words in LOSSES.items():
        key = loss if loss == "inside" else f"{loss}_{name}"
        tint, median = style.colour(COLOURS[loss]), data[f"{key}_median"]
        ax.plot(alpha, data[key], color=tint, linewidth=2.6, label=words)
        ax.plot(alpha, np.where(median > 0, median, np.nan), color=tint, linewidth=1.1, linestyle=style.DASHES[1])
        if f"{key}_law" in data:
            ax.plot(alpha[sharp], data[f"{key}_law"][sharp], **law)
    ax.plot([], [], label="law of sharp rows", **law)
    ax.plot([], [], color=style.colour("reference"), linestyle=style.DASHES[1], linewidth=1.1, label="medians")


def _confident(data: Data) -> Measured:
    """Half of Σ|ŷ − y| of the sharpest rows, mean over rows."""
    names = ("right", "wrong")
    return Measured(
        [data[f"cross_{name}"][-1] / 2 for name in names],
        standard_error=[data[f"cross_{name}_error"][-1] / 2 for name in names],
        where=names,
        numbers={"keys": int(data["keys"]), "alpha": data["alpha"][-1]},
    )


def _squared_over_cross(data: Data) -> Measured:
    """Median gradient by the logits where the label is wrong, squared error over cross-entropy, of sharp rows."""
    sharp = data["alpha"] >= SHARP
    return Measured(
        data["squared_wrong_median"][sharp] / data["cross_wrong_median"][sharp],
        where=[f"α = {each:.3g}" for each in data["alpha"][sharp]],
        numbers={"keys": int(data["keys"])},
    )


def _over_laws(data: Data) -> Measured:
    """Mean gradients over their laws at α = `TIED`, from rows with a near tie, weighted by how rare they are."""
    laws = np.stack([data[f"{name}_law"] for name in SHARP_LAWS]) * data["alpha"]  # without 1/α
    return Measured(
        data["tied"] / laws[:, 0],
        standard_error=data["tied_error"] / laws[:, 0],
        where=[name.replace("_", ", ") for name in SHARP_LAWS],
        numbers={"keys": int(data["keys"])},
    )


SCORES = r"<keys> normal scores times $\alpha$"
ROWS = (
    published(
        "last-wrong",
        r"With cross-entropy the gradient $\hat{y}-y$ of a confident last softmax is near 0 where the prediction is "
        "right and near 1 where it is wrong.",
        _confident,
        near([0, 1], CLOSE),
        source="study-notes",
        place="section on the last layer's softmax",
        formula=True,
        hypotheses=rf"{SCORES}, $\alpha=<alpha:.3g>$",
        interval_from=f"our tolerance: {CLOSE}",
        note=r"measured: half of $\sum\lvert \hat{y}-y\rvert$, mean over rows",
    ),
    published(
        "last-squared-typical",
        "Under squared error a softmax output that is sure and wrong may hardly be corrected.",
        _squared_over_cross,
        at_most(CLOSE),
        source="goodfellow2016",
        place="section 6.2.2.3",
        formula=True,
        needs="some",
        hypotheses=rf"{SCORES}, $\alpha$ from {SHARP:g} on; the label is not the largest score's",
        interval_from="our tolerance: a twentieth of cross-entropy's gradient",
        note="measured: median gradient by the logits, squared error over cross-entropy",
    ),
    law(
        "last-squared-wrong",
        r"For $\alpha\to\infty$ the $\ell_1$ norm of a loss's gradient by the logits of a row has the mean "
        r"$E[\max s]/(2\alpha)$ with squared error if right, $(n+1)/(n-1)$ times that if wrong, and "
        r"$2\log2\thinspace E[\max s]/\alpha$ with cross-entropy if right.",
        _over_laws,
        near(1, NEAR),
        proof="derived",
        place=PAGE,
        neighbours=["david2003"],
        hypotheses=rf"{SCORES}, $\alpha={TIED:g}$; the mean is over rows and wrong labels; squared error is "
        r"$\frac{1}{2}\lVert p-y\rVert^{2}$",
        after_result=True,
        interval_from="our tolerance: a quarter of what tells $(n+1)/(n-1)$ from 1; a first run judged smaller scales "
        "to a tenth, where the rest is as large as that factor",
        note="measured over the law, from rows with a near tie, weighted by how rare they are; the density of ties is "
        "known from order statistics",
    ),
)
