"""Dot product against additive scores, with and without 1/√d_k: the same task trained, and what each costs."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures._timing import log_error, quartiles
from experiments.figures.anatomy import _retrieval
from experiments.ledger import Measured, at_least, near, published
from experiments.lib import figure, style
from rc_jax import attention

ABOUT = figure.About(
    title="Dot product or additive, scaled or not",
    caption=(
        "A retrieval task: every token asks, by a rotated and noisy copy of a key, for the label of that key; one "
        "layer of attention and a linear reader, trained by Adam. Top left: accuracy on new sequences, mean and range "
        "over seeds, each at the learning rate that is best on other sequences. Top right: the widest head at every "
        "learning rate. Below: time of a call in turns (median, quartiles) and memory besides arguments and result of "
        "one head's scores, as compiled here for the CPU."
    ),
    formula="dot: α q·k;   additive: α vᵀtanh(q + k);   α = 1 or 1/√d_k",
    topic="layer",
    minutes={"smoke": 0.15, "quick": 3.2, "full": 140.0},
    alone=True,
)
KINDS = ("dot", "additive")
NAMES = ("dot, α = 1", "dot, α = 1/√d_k", "additive, α = 1", "additive, α = 1/√d_k")
COLOURS = ("published", "measured", "mlp", "corrected")
SIMILAR, LESS = 0.05, 0.02  # accuracies that count as alike, and a loss that counts; fixed beforehand
STEADY = 0.15  # a slope that counts as none
MUCH = 2.0  # times as fast, and more, is much faster
LEAST_PRODUCTS = 10**6  # n² d_k; below, calling takes most of a call's time
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Widths of a head, the task, seeds and learning rates; shapes (tokens, d_k) whose cost is measured."""

    widths: tuple[int, ...] = (4, 32, 128, 512)
    task: _retrieval.Task = _retrieval.Task(batch=8, steps=200)
    seeds: int = 16
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)
    shapes: tuple[tuple[int, int], ...] = ((32, 64), (64, 64), (128, 64), (256, 64), (128, 16), (128, 256))
    seconds: float = 0.3
    least: int = 5


PRESETS = {
    "smoke": Spec(
        widths=(4, 8), task=_retrieval.Task(tokens=4, width=4, batch=2, steps=4, test=4), seeds=2, rates=(1e-2,),
        shapes=((16, 8), (32, 8)), seconds=0.01, least=2,
    ),
    "quick": Spec(),
    "full": Spec(
        widths=(4, 8, 16, 32, 64, 128, 256, 512), task=_retrieval.Task(batch=64, steps=2000, test=256), seeds=16,
        rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2), seconds=3.0, least=20,
    ),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Accuracies (width, kind and scale, rate, seed), of guesses and at best; costs."""
    task, rates = spec.task, jnp.asarray(spec.rates)
    keys = jax.random.split(jax.random.key(spec.seed), spec.seeds)
    data = _retrieval.draw(spec.seed, spec.seeds, task)
    trained: dict[str, list] = {}
    for width in spec.widths:
        for kind in KINDS:
            layer = attention.AttentionSpec(d_model=task.d_model, d_head=width, scores=kind)
            with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
                result = _retrieval.train(keys, data, rates, jnp.asarray([1.0, width**-0.5]), layer)
            for name, value in result.items():
                trained.setdefault(name, []).append(np.asarray(value, float))
    shape = (len(spec.widths), len(NAMES), len(spec.rates), spec.seeds)
    results = {name: np.array(values).reshape(shape) for name, values in trained.items()}
    # The learning rate is chosen on other sequences than those that the accuracy is taken on.
    best = results.pop("validation").mean(3).argmax(2)
    results["tuned"] = np.take_along_axis(results["test"], best[..., None, None], 2)[:, :, 0]
    return results | _cost(spec) | {
        "widths": np.array(spec.widths), "rates": np.array(spec.rates), "shapes": np.array(spec.shapes),
        "steps": np.asarray(task.steps),
    }  # fmt: skip


def _cost(spec: Spec) -> dict[str, np.ndarray]:
    """Of one head's scores for each (tokens, d_k): arrays (kind, shape), times with their quartiles last.

    `operations` are multiplications, additions and tanh's of the compiled program, `bytes` what it needs besides its
    arguments and its result, `seconds` the time of a call.
    """
    costs: dict[str, list] = {"operations": [], "bytes": [], "seconds": []}
    for tokens, width in spec.shapes:
        x = jax.random.normal(jax.random.key(0), (tokens, spec.task.d_model))
        programs, calls = [], {}
        for kind in KINDS:
            layer = attention.AttentionSpec(d_model=spec.task.d_model, d_head=width, scores=kind)
            params = attention.init(jax.random.key(1), layer)
            program = jax.jit(partial(attention.scores, spec=layer)).lower(params, x).compile()
            programs.append(program)
            calls[kind] = partial(program, params, x)
        # XLA counts tanh apart from the other operations.
        counted = [program.cost_analysis() or {} for program in programs]
        costs["operations"].append([c.get("flops", np.nan) + c.get("transcendentals", 0) for c in counted])
        costs["bytes"].append([program.memory_analysis().temp_size_in_bytes for program in programs])
        costs["seconds"].append(list(quartiles(calls, spec.seconds, spec.least).values()))
    return {name: np.moveaxis(np.array(values, float), 0, 1) for name, values in costs.items()}


def plot(data: Data) -> Figure:
    """Accuracy against width; against the learning rate; time; memory."""
    drawing, (width, rate, time, memory) = style.figure(columns=2, rows=2, width=5.8, height=4.2)
    below = {"legend": "below", "columns": 2}
    _plot_accuracy(width, data["widths"], np.moveaxis(data["tuned"], 1, 0), data)
    style.reference(width, y=float(data["chance"].mean()), text="chance, measured")
    style.panel(width, "d_k, width of a head", "accuracy", "Each at its best learning rate", log="x", base=2, **below)
    _plot_accuracy(rate, data["rates"], data["test"][-1], data)
    style.reference(rate, y=float(data["chance"].mean()))
    title = f"d_k = {data['widths'][-1]}, every learning rate"
    style.panel(rate, "learning rate of Adam", "accuracy", title, log="x", **below)
    for ax, name, unit in ((time, "seconds", 1e6), (memory, "bytes", 2.0**-20)):
        _plot_cost(ax, data["shapes"], unit * data[name])
    both = {"log": "xy", "base": 2} | below
    style.panel(time, "n, tokens", "time (µs)", "Time of one head's scores", **both)
    style.panel(memory, "n, tokens", "memory (MiB)", "Memory besides arguments and result", **both)
    return drawing


def _plot_accuracy(ax: Axes, x: np.ndarray, values: np.ndarray, data: Data) -> None:
    """Mean and range over seeds: values (side, x, seed)."""
    for index, rows in enumerate(values):
        style.bands(ax, x, rows.min(1), rows.mean(1), rows.max(1), meaning=COLOURS[index], label=NAMES[index],
                    marker=style.MARKERS[index], alpha=0.13)  # fmt: skip
    style.reference(ax, y=float(data["ceiling"].mean()), text="with the rotation known", meaning="theory")
    ax.set_ylim(0, 1.08)


def _plot_cost(ax: Axes, shapes: np.ndarray, costs: np.ndarray) -> None:
    """Costs (kind, shape), with quartiles or without, against the number of tokens, one line for each width."""
    tokens, width = shapes.T
    for index, (kind, meaning) in enumerate(zip(KINDS, ("measured", "mlp"), strict=True)):
        low, middle, high = costs[index, :, :3].T if costs.ndim == 3 else (costs[index],) * 3
        for at, each in enumerate(np.unique(width)):
            of_width = np.flatnonzero(width == each)
            of_width = of_width[np.argsort(tokens[of_width])]
            y = np.where(middle > 0, middle, np.nan)[of_width]
            spread = [(middle - low)[of_width], (high - middle)[of_width]] if costs.ndim == 3 else None
            ax.errorbar(tokens[of_width] * 1.04 ** (at - 1), y, spread, color=style.colour(meaning), capsize=2,
                        marker=style.MARKERS[at], label=f"{kind}, d_k = {each}")  # fmt: skip


DOT, SCALED, ADDITIVE = (NAMES.index(name) for name in ("dot, α = 1", "dot, α = 1/√d_k", "additive, α = 1"))


def _gap(data: Data, one: np.ndarray, other: np.ndarray) -> Measured:
    """Mean difference over seeds, which both sides share, and the task in numbers."""
    gap, widths = one - other, data["widths"]
    return Measured(
        gap.mean(),
        standard_error=gap.std(ddof=1) / gap.size**0.5,
        numbers={
            "narrow": widths[0],
            "before": widths[_before_last(data)],
            "wide": widths[-1],
            "widths": widths.size,
            "steps": int(data["steps"]),
            "seeds": data["tuned"].shape[2],
            "rates": data["rates"].size,
        },
    )


def _before_last(data: Data) -> int:
    return max(data["widths"].size - 2, 0)


def _stable(data: Data) -> Measured:
    """Scaled dot products less unscaled additive scores at the worst learning rate, in the mean over widths."""
    worst = data["test"].min(2).mean(0)
    return _gap(data, worst[SCALED], worst[ADDITIVE])


def _orders(data: Data) -> Measured:
    """Exponents of the ratio of operations in n and in d_k, by least squares on the logarithms."""
    tokens, width = data["shapes"].T
    shape = np.log(np.stack([tokens, width, np.full(tokens.size, np.e)], 1))
    ratio = data["operations"][1] / data["operations"][0]
    shapes = _shapes(data)
    return Measured(
        (np.linalg.pinv(shape) @ np.log(ratio))[:2],
        where=["exponent in n", "exponent in d_k"],
        numbers={"first": shapes[0], "last": shapes[-1]},
    )


def _shapes(data: Data) -> list[str]:
    return [f"n = {n}, d_k = {d}" for n, d in data["shapes"]]


def _faster(data: Data) -> Measured:
    """Time of additive scores over that of dot products by shape; only shapes of many products decide."""
    tokens, width = data["shapes"].T
    median, calls = data["seconds"][..., 1], data["seconds"][..., 3]
    faster = median[1] / median[0]
    return Measured(
        faster,
        standard_error=faster * np.hypot(*log_error(data["seconds"])),
        where=_shapes(data),
        applies=tokens**2 * width >= LEAST_PRODUCTS,
        numbers={"count": np.sum(faster > 1), "shapes": faster.size, "calls": calls.min()},
    )


# Accuracy of the four: additive against dot-product scores for small and large d_k, and how steadily each trains.
TASK = (
    "one layer trained to retrieve among eight tokens, <steps> steps of Adam, <seeds> seeds; the paper speaks of "
    "translation"
)
TASK_AT_BEST = TASK + "; best of <rates> learning rates"
cited = partial(
    published,
    source="vaswani2017",
    place="section 3.2.1, citing Britz et al. 2017",
    note="measured: accuracy of additive scores less that of dot products",
)
notes = partial(
    published,
    source="study-notes",
    place="section on products or sums in the scores",
    interval_from=f"our tolerance: a difference of {LESS} counts",
)
# Then operations, time and memory of additive scores over those of dot products.
COMPILED = "scores of one head, compiled for this machine's CPU"
paper = partial(published, source="vaswani2017", place="section 3.2.1")
ROWS = (
    cited(
        "additive-small",
        "For small $d_k$ additive and dot-product attention perform similarly.",
        lambda data: _gap(data, data["tuned"][0, ADDITIVE], data["tuned"][0, DOT]),
        near(0, SIMILAR),
        hypotheses="$d_k=<narrow>$, no scale; " + TASK_AT_BEST,
        interval_from=f"our tolerance: accuracies within {SIMILAR} are similar",
    ),
    cited(
        "additive-large",
        "For larger $d_k$ additive attention performs better than unscaled dot-product attention.",
        lambda data: _gap(data, data["tuned"][-1, ADDITIVE], data["tuned"][-1, DOT]),
        at_least(LESS),
        hypotheses="$d_k=<wide>$; " + TASK_AT_BEST,
        interval_from=f"our tolerance: a difference of {LESS} counts",
    ),
    notes(
        "additive-degrades",
        "Unscaled dot products perform worse as $d_k$ grows.",
        lambda data: _gap(data, data["tuned"][_before_last(data), DOT], data["tuned"][-1, DOT]),
        at_least(LESS),
        hypotheses="$d_k=<before>$ to $d_k=<wide>$; " + TASK_AT_BEST,
        note="measured: accuracy lost between the two widest heads",
    ),
    notes(
        "additive-stable",
        r"Additive attention is less stable than dot products scaled by $1/\sqrt{d_k}$.",
        _stable,
        at_least(LESS),
        hypotheses="stable: still accurate at the worst of <rates> learning rates; mean over <widths> widths; " + TASK,
        note="measured: accuracy of scaled dot products less that of unscaled additive scores there",
    ),
    paper(
        "additive-order",
        "Additive and dot-product attention have a similar theoretical complexity.",
        _orders,
        near(0, STEADY),
        formula=True,
        hypotheses=COMPILED + "; <first> … <last>",
        interval_from=f"our tolerance: an exponent within {STEADY} counts as none",
        note="measured: exponents of the ratio of operations, XLA's count",
    ),
    paper(
        "additive-time",
        "Dot-product attention is much faster in practice than additive attention.",
        _faster,
        at_least(MUCH),
        hypotheses=f"{COMPILED}; at least $10^{{6}}$ products, so that calling does not take most of the time",
        interval_from=f"our tolerance: much is a factor of {MUCH:g} or more",
        note="measured: ratio of median times, of <calls:.0f> calls or more in turns; faster at <count> of all "
        "<shapes> shapes",
    ),
    paper(
        "additive-memory",
        "Dot-product attention needs less space in practice than additive attention.",
        lambda data: Measured(data["bytes"][1] / data["bytes"][0], where=_shapes(data)),
        at_least(1),
        hypotheses=COMPILED,
        interval_from="the sign of the difference",
        note="measured: ratio of memory besides arguments and result; compiled so, additive scores hold "
        r"$n^{2}\thinspace d_k$ numbers at once",
    ),
)
