"""Measures of sparsity beside S: how each sees a softmax sharpen, and which of six axioms each satisfies."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import experiments.lib.figure
from experiments.ledger import Measured, at_least, law, published
from experiments.lib import style
from experiments.lib.figure import About
from rc_jax import sparsity

ROUNDING = 1e-10  # relative changes below this are none
ABOUT = About(
    title="Measures of sparsity beside S",
    caption=(
        "The first panel shows measures between 0 and 1 of softmax rows against γ. Lines are the limits of many keys; "
        "points are rows drawn at random (mean ± 1 standard error), whose few largest entries fall behind the limit "
        "at large γ, more so the higher the order. The second panel shows the measures in nats. The table shows how "
        "the axioms of Hurley and Rickard fared on random rows, with ties and without, and on the counterexamples of "
        "the tests: they held in every trial (✓), or were broken (✗). For continuous measures that do not see the "
        "order of entries, scaling, cloning and Robin Hood imply the other three."
    ),
    formula="softmax: S = e^{−γ²/2}, Gini = erf(γ/2), log n − H_q = qγ²/2, κ₄ = e^{4γ²}",
    topic="sparsity",
    minutes={"smoke": 0.1, "quick": 0.15, "full": 1.5},
)


class Spec(experiments.lib.figure.Spec):
    """Rows of softmax weights at each γ; random rows for each axiom."""

    dtype: str = "float64"
    keys: int = 2**15
    rows: int = 32
    gammas: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0)
    trials: int = 20_000


PRESETS = {
    "smoke": Spec(keys=2**11, rows=4, trials=500),
    "quick": Spec(),
    "full": Spec(keys=2**20, rows=64, trials=1_000_000),
}
MEASURES: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("1 − S", lambda a: 1 - sparsity.sparsity(a)),
    ("Gini", sparsity.gini),
    ("Hoyer", sparsity.hoyer),
    ("1 − H/log n", sparsity.entropy_sparsity),
    ("log n − H½", functools.partial(sparsity.renyi_sparsity, order=0.5)),
    ("log n − H₁", functools.partial(sparsity.renyi_sparsity, order=1.0)),
    ("log n − H₂", functools.partial(sparsity.renyi_sparsity, order=2.0)),
    ("κ₄", sparsity.kurtosis),
    ("ℓ₂/ℓ₁", sparsity.norm_ratio),
)
NAMES = tuple(name for name, _ in MEASURES)
AXIOMS = ("Robin Hood", "scaling", "rising tide", "cloning", "Bill Gates", "babies")
EXAMPLES = {"Robin Hood": ([2.0, 1.0, 0.0], [2.0, 0.75, 0.25])}  # breaks κ₄; random rows break what else is broken
SIZE = 6
Data = Mapping[str, np.ndarray]


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Measures of softmax rows with their limits, and the worst case of every axiom over random rows."""
    key = jax.random.key(spec.seed)
    gammas = jnp.asarray(spec.gammas, spec.dtype)

    def rows(index: Array) -> Array:
        draws = jax.random.normal(jax.random.fold_in(key, index), (spec.rows, spec.keys), spec.dtype)
        return _all(jnp.exp(gammas[index] * draws))

    measured = np.asarray(jax.lax.map(rows, jnp.arange(len(spec.gammas))))  # (γ, measure, row)
    line = np.linspace(0, max(spec.gammas), 121)
    return {
        "gamma": np.array(spec.gammas), "line": line, "keys": np.asarray(spec.keys),
        "mean": measured.mean(-1).T, "error": measured.std(-1, ddof=1).T / spec.rows**0.5,
        "curve": _limits(line, spec.keys), "margin": _axioms(np.random.default_rng(spec.seed), spec.trials),
    }  # fmt: skip


@jax.jit
def _all(a: Array) -> Array:
    """Every measure of every row, (measure, row)."""
    return jnp.stack([measure(a) for _, measure in MEASURES])


def _limits(gamma: np.ndarray, n: int) -> np.ndarray:
    """The limits of many keys; those that depend on n for this n."""
    square = gamma**2
    focus = 1 - np.exp(-square / 2)
    return np.stack([
        focus, np.asarray(erf(gamma / 2)), focus / (1 - n**-0.5), square / (2 * math.log(n)),
        square / 4, square / 2, square, np.exp(4 * square), n**-0.5 * np.exp(square / 2),
    ])  # fmt: skip


def _axioms(random: np.random.Generator, trials: int) -> np.ndarray:
    """The margin by which each measure satisfies each axiom in its worst trial, (measure, axiom); negative if broken.

    Of an axiom that asks for a rise or a fall: the least relative change in that direction, less `ROUNDING`. Of one
    that asks for no change: `ROUNDING` less the largest relative change.
    """
    rows = random.exponential(size=(trials, SIZE)) ** random.uniform(0.5, 3, size=(trials, 1))
    share, far = random.uniform(0.05, 0.95, size=(2, trials, 1))
    # Every second row has ties, and every fourth gives half the difference: where measures that jump would fail.
    tied = random.integers(0, 3, size=rows.shape).astype(float)
    tied[:, 0], tied[:, 1], tied[:, 2] = 2.0, 1.0, 0.0
    rows[::2], share[::4] = tied[::2], 1.0
    order = np.sort(rows, axis=1)
    given = share * (order[:, -1:] - order[:, :1]) / 2  # from the richest to the poorest: beyond rounding
    robbed = order + given * (np.eye(SIZE)[:1] - np.eye(SIZE)[-1:])
    # Ten times the sum of the others: beyond every measure's threshold, and not so far that what is left is rounding.
    first, poor = np.eye(SIZE)[:1], np.maximum(rows, 1e-3) * (1 - np.eye(SIZE)[:1])
    rich = poor + 10 * poor.sum(1, keepdims=True) * first
    pairs = {
        "Robin Hood": (order, robbed), "scaling": (rows, 10 * share * rows), "rising tide": (rows, rows + far),
        "cloning": (rows, np.concatenate([rows, rows], 1)), "Bill Gates": (rich, rich + far * rich * first),
        "babies": (rows, np.concatenate([rows, np.zeros((trials, 1))], 1)),
    }  # fmt: skip
    worst = []
    # The worst over random rows, and over the counterexample where there is one.
    for axiom in AXIOMS:
        cases = [pairs[axiom]] + ([tuple(np.array([row]) for row in EXAMPLES[axiom])] if axiom in EXAMPLES else [])
        margins = [_margin(axiom, *(np.asarray(_all(jnp.asarray(rows))) for rows in case)) for case in cases]
        worst.append(np.min(margins, axis=0))
    return np.stack(worst, axis=1)


def _margin(axiom: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Of each measure, in its worst trial."""
    change = (after - before) / np.abs(before)
    if axiom in ("scaling", "cloning"):
        return ROUNDING - np.abs(change).max(axis=1)
    return (-change if axiom in ("Robin Hood", "rising tide") else change).min(axis=1) - ROUNDING


def plot(data: Data) -> Figure:
    """Bounded measures, measures in nats, and the table of axioms."""
    drawing, (bounded, nats, table) = style.figure(columns=3, width=5.2, height=4.4)
    for index, name in enumerate(("1 − S", "Gini", "1 − H/log n")):
        _curve(bounded, data, name, index)
    bounded.set_ylim(0, 1.02)
    style.panel(bounded, "γ, spread of the logits (nats)", "measure, 0 even … 1 one key",
                f"Softmax rows, n = {int(data['keys'])}", legend="below", columns=3)  # fmt: skip
    for index, name in enumerate(("log n − H½", "log n − H₁", "log n − H₂", "κ₄")):
        _curve(nats, data, name, index, logarithm=name == "κ₄")
    style.reference(nats, y=math.log(int(data["keys"])), text="log n: one key")
    nats.set_ylim(0, 1.25 * math.log(int(data["keys"])))
    style.panel(nats, "γ, spread of the logits (nats)", "nats", "Entropy lacking, log κ₄", legend="below", columns=4)
    _table(table, data["margin"])
    return drawing


def _curve(ax: Axes, data: Data, name: str, index: int, *, logarithm: bool = False) -> None:
    look, place = style.cycle(index), NAMES.index(name)
    curve, mean, error = data["curve"][place], data["mean"][place], data["error"][place]
    if logarithm:
        curve, mean, error, name = np.log(curve), np.log(mean), error / mean, f"log {name}"
    ax.plot(data["line"], curve, color=look["color"])
    ax.errorbar(data["gamma"], mean, error, color=look["color"], marker=look["marker"], linestyle="none", label=name)


def _table(ax: Axes, margin: np.ndarray) -> None:
    for row in range(len(NAMES)):
        for column in range(len(AXIOMS)):
            good = bool(margin[row, column] >= 0)
            ax.text(column, row, "✓" if good else "✗", ha="center", va="center", fontsize=13,
                    color=style.colour("corrected" if good else "published"))  # fmt: skip
        if np.all(margin[row] >= 0):
            ax.axhspan(row - 0.5, row + 0.5, color=style.colour("corrected"), alpha=0.12, linewidth=0)
    ax.set_xticks(range(len(AXIOMS)), AXIOMS, rotation=30, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(NAMES)), NAMES)
    ax.set(xlim=(-0.5, len(AXIOMS) - 0.5), ylim=(len(NAMES) - 0.5, -0.5), title="Axioms satisfied; shaded: all six")
    ax.grid(False)
    ax.tick_params(length=0)


def _rises(data: Data) -> Measured:
    """Relative rise of 1 − S and of log n − H, H Shannon's entropy, from one γ to the next."""
    rises, errors, where = [], [], []
    for name in ("1 − S", "log n − H₁"):
        mean, error = data["mean"][NAMES.index(name)], data["error"][NAMES.index(name)]
        rises.append(np.diff(mean) / mean[1:])
        errors.append(np.hypot(error[1:], error[:-1]) / mean[1:])
        where += [f"{name}, γ = {low:g} to {high:g}" for low, high in itertools.pairwise(data["gamma"])]
    numbers = {"keys": int(data["keys"])}
    return Measured(np.concatenate(rises), standard_error=np.concatenate(errors), where=where, numbers=numbers)


def _margins(data: Data, name: str) -> np.ndarray:
    """The margin by which a measure satisfies each axiom."""
    return data["margin"][NAMES.index(name)]


def _margins_beside_basic(data: Data) -> Measured:
    """Margins in the other axioms of the measures that satisfy Robin Hood, scaling and cloning."""
    basic = [AXIOMS.index(axiom) for axiom in ("Robin Hood", "scaling", "cloning")]
    rest = [at for at in range(len(AXIOMS)) if at not in basic]
    good = [name for name in NAMES if np.all(_margins(data, name)[basic] >= 0)]
    return Measured(
        [_margins(data, name)[rest] for name in good],
        where=[f"{name}, {AXIOMS[at]}" for name in good for at in rest],
        reads=[data["margin"]],
        numbers={"measures": ", ".join(good)},
    )


table = functools.partial(
    published,
    source="hurley2009",
    place="abstract of the version in the IEEE Transactions on Information Theory; the address is that of the "
    "preprint, which names the Gini index alone",
    formula=True,
    interval_from="the axioms as inequalities",
)
proved = functools.partial(
    law, proof="proved", place="docs/sparsity_measures.md", interval_from="the axioms as inequalities"
)
TRIALS = "every random row and counterexample; an axiom holds where the margin is not negative"
POSITIVE = "rows of six non-negative weights, at least two positive and not all equal, every second with ties"
ROWS = (
    published(
        "measures-entropy",
        r"Like entropy, $S=E\lvert x\rvert/\sqrt{E\thinspace x^{2}}$ is the smaller the sparser a row is, that is the "
        "more it may have one weight that dominates.",
        _rises,
        at_least(0),
        formula=True,
        source="su2023concentrate",
        place="section on the degree of sparsity",
        hypotheses=r"softmax rows of <keys> independent normal scores, deviation $\gamma$",
        interval_from="both fall",
        note=r"relative rise of $1-S$ and of $\log n-H$, $H$ Shannon's entropy, from one $\gamma$ to the next",
    ),
    table(
        "measures-pq-mean",
        "The pq-mean with $p=1$ and $q=2$ satisfies all six axioms of sparsity.",
        lambda data: Measured(_margins(data, "1 − S"), where=AXIOMS),
        at_least(0),
        hypotheses=rf"$p=1$, $q=2$, where the source has $p\leq1$ and $q\gt1$; {POSITIVE}",
        note=f"{TRIALS}; $S$ is this mean with its sign turned",
    ),
    table(
        "measures-gini-axioms",
        "The Gini index satisfies all six axioms of sparsity.",
        lambda data: Measured(_margins(data, "Gini"), where=AXIOMS),
        at_least(0),
        hypotheses=POSITIVE,
        note=TRIALS,
    ),
    proved(
        "measures-renyi-axioms",
        r"What Rényi's entropies of order 1 and 2 lack to $\log n$, at order 1 Theil's index, satisfies all six axioms "
        "of sparsity.",
        lambda data: Measured(
            [_margins(data, "log n − H₁"), _margins(data, "log n − H₂")],
            where=[f"order {order}, {axiom}" for order in (1, 2) for axiom in AXIOMS],
        ),
        at_least(0),
        neighbours=["hurley2009", "dalton1920", "foster1985"],
        hypotheses=POSITIVE,
        note=TRIALS,
    ),
    proved(
        "measures-theorem",
        "A continuous measure that does not see the order of entries and satisfies Robin Hood, scaling and cloning "
        "satisfies the other three axioms too.",
        _margins_beside_basic,
        at_least(0),
        neighbours=["dalton1920", "foster1985", "hurley2009"],
        hypotheses="continuous measures, or Robin Hood for parts up to half the difference and not only for less; "
        f"{POSITIVE}",
        note="Lorenz consistency in the words of the literature on inequality; measures with the three: <measures>",
    ),
)
