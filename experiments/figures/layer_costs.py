"""Attention, recurrence and convolution: operations, sequential steps and longest path, counted and in time."""

import dataclasses
from collections.abc import Mapping
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from experiments import figure, style
from experiments.figure import About
from experiments.figures import _layer_kinds as layers
from experiments.figures._timing import rounds
from experiments.ledger import Claim, corrected, on_range, within
from rc_jax import attention
from rc_jax.attention.cost import Kind

KINDS: tuple[Kind, ...] = get_args(Kind)
V17 = "Vaswani et al. 2017, table 1"
TEXT = "Vaswani et al. 2017, section 4"
ABOUT = About(
    title="What a layer costs: attention, recurrence, convolution",
    caption=(
        "Left: multiplications of a layer, read off its program (points: XLA's count of every product, loop bodies as "
        "often as they run) and by formula (lines). Middle: layers, or steps, until every output depends on every "
        "token that it ever will, by a search over the Jacobians of real layers (points) and by formula (lines). "
        "Right: time of a call (medians and quartiles of calls in turns; this machine's, float32). Attention is "
        "without its projections, as in the source; windows and kernels are k tokens wide."
    ),
    formula="2n²d, 1, 1;   2nd², n, n;   knd², 1, 2(n − 1)/(k − 1) or log_k n;   window 2knd, 1, 2(n − 1)/(k − 1)",
    topic="layer",
    minutes={"smoke": 0.1, "quick": 0.35, "full": 2.0},
    alone=True,
)
Data = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Spec(figure.Spec):
    """Width of the layers, kernel, numbers of tokens to time and to search, and seconds of timing at each."""

    d_model: int = 128
    width: int = 5
    tokens: tuple[int, ...] = (32, 64, 128, 256, 1024, 4096)
    searched: tuple[int, ...] = (4, 16, 64)
    seconds: float = 0.5
    least: int = 5


PRESETS = {
    "smoke": Spec(d_model=8, tokens=(8, 64), searched=(4,), seconds=0.02),
    "quick": Spec(),
    "full": Spec(d_model=512, tokens=(64, 128, 256, 512, 1024, 2048, 4096), searched=(4, 16, 64, 243), seconds=4.0),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By kind and number of tokens: counted and expected costs, and quartiles of seconds."""
    random = np.random.default_rng(spec.seed)
    counted, steps, seconds, expected = [], [], [], []
    for n in spec.tokens:
        x = jnp.asarray(random.normal(size=(n, spec.d_model)), jnp.float32)
        parts = {kind: (jax.jit(layers.layer(kind, spec.width)), _weights(kind, spec)) for kind in KINDS}
        calls = {kind: (lambda run=run, given=given, x=x: run(given, x)) for kind, (run, given) in parts.items()}
        timed = rounds(calls, spec.seconds, spec.least)
        seconds.append([np.quantile(timed[kind], [0.25, 0.5, 0.75]) for kind in KINDS])
        counted.append([layers.matrix_multiplications(run, given, x) for run, given in parts.values()])
        steps.append([layers.sequential_steps(run, given, x) for run, given in parts.values()])
        expected.append(
            [attention.layer_costs(kind, tokens=n, d_model=spec.d_model, width=spec.width) for kind in KINDS]
        )
    small = {n: jnp.asarray(random.normal(size=(n, 2)), jnp.float32) for n in spec.searched}
    return {
        "tokens": np.array(spec.tokens), "shape": np.array([spec.d_model, spec.width]),
        "searched": np.array(spec.searched), "expected": np.array(expected, float),  # (n, kind, cost)
        "counted": np.array(counted, float), "steps": np.array(steps), "seconds": np.array(seconds),
        "paths": np.array([[layers.longest_path(kind, x, spec.width) for kind in KINDS] for x in small.values()]),
    }  # fmt: skip


def _weights(kind: Kind, spec: Spec) -> tuple[jax.Array, ...]:
    return tuple(each.astype(jnp.float32) for each in layers.weights(kind, spec.d_model, spec.width, spec.seed))


def _over(data: Data) -> np.ndarray:
    """What windows multiply beyond the border and then hide, by kind; nothing in the others."""
    d, width = (int(each) for each in data["shape"])
    radius = (width - 1) // 2
    return np.array([2 * d * radius * (radius + 1) if kind == "restricted attention" else 0 for kind in KINDS])


def _paths(data: Data, tokens: np.ndarray) -> np.ndarray:
    d, width = (int(each) for each in data["shape"])
    costs = [[attention.layer_costs(kind, tokens=int(n), d_model=d, width=width) for kind in KINDS] for n in tokens]
    return np.array([[each.longest_path for each in row] for row in costs])


def plot(data: Data) -> Drawing:
    """Multiplications; longest paths; times."""
    drawing, (work, path, time) = style.figure(columns=3, width=5.0, height=4.8)
    n = data["tokens"]
    line = np.unique(np.geomspace(2, data["searched"][-1], 40).astype(int))
    for index, kind in enumerate(KINDS):
        look, paths = style.cycle(index), _paths(data, line)[:, index]
        dash, color, marker = look["linestyle"], look["color"], look["marker"]
        work.plot(n, data["expected"][:, index, 0], linestyle=dash, color=color, linewidth=1.2)
        work.plot(n, data["counted"][:, index] - _over(data)[index], marker, color=color, label=kind)
        path.plot(line, paths, linestyle=dash, color=color, linewidth=1.2)
        path.plot(data["searched"], data["paths"][:, index], marker, color=color, label=kind, fillstyle="none")
        low, middle, high = 1e3 * data["seconds"][:, index].T
        style.bands(time, n, low, middle, high, color=color, marker=marker, label=kind)
    d, width = data["shape"]
    style.labels(work, "n, number of tokens", "multiplications", f"Operations, d = {d}, k = {width}")
    style.labels(path, "n, number of tokens", "layers or steps", "Longest path")
    style.labels(time, "n, number of tokens", "time of a layer (ms)", "Time")
    for ax in (work, path, time):
        _finish(ax)
    return drawing


def _finish(ax: Axes) -> None:
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    style.legend(ax, "below", columns=2)


def claims(data: Data) -> list[Claim]:
    """Every cell of the table, and what the source says of it in words."""
    n, (d, width) = data["tokens"], (int(each) for each in data["shape"])
    work = data["counted"] - _over(data) - data["expected"][:, :, 0]
    steps = data["steps"] - data["expected"][:, :, 1]
    paths = data["paths"] - _paths(data, data["searched"])
    at = KINDS.index
    middle = data["seconds"][:, :, 1]
    ratio = middle[:, at("attention")] / middle[:, at("recurrence")]
    short = n < d
    counts = data["counted"][:, at("attention")] / data["counted"][:, at("recurrence")]
    rate = middle / data["counted"]
    slower = rate[:, at("recurrence")] / rate[:, at("convolution")]
    dear = data["counted"][-1, at("convolution")] / data["counted"][-1, at("recurrence")]
    found = [
        on_range(f"layers-{key}", text, V17, "exact", np.abs(gap).max(axis=0), (gap == 0).all(axis=0), KINDS,
                 note="largest difference of program and formula")
        for key, text, gap in (
            ("operations", "multiplications of a layer", work), ("steps", "sequential steps", steps),
            ("paths", "longest path, by search over Jacobians", paths),
        )
    ]  # fmt: skip
    return [
        *found,
        on_range("layers-short", "attention has fewer operations than recurrence where n < d", TEXT, "n < d", counts,
                 (counts < 1) == short, [f"n = {each}" for each in n], note="ratio of multiplications, n/d"),
        on_range("layers-short-time", "and is faster there", TEXT, "faster", ratio[short], ratio[short] < 1,
                 [f"n = {each}" for each in n[short]], note="ratio of times"),
        corrected("layers-convolution", "convolution is dearer than recurrence by a factor of k", TEXT, width, dear,
                  0.95 * width, 1.05 * width, 0.95 * width / 2, 1.05 * width / 2,
                  note="multiplications; k/2, for a recurrence multiplies both its input and its state by a matrix"),
        on_range("layers-parallel", "steps that wait for each other: a multiplication takes longer in a recurrence "
                 "than in a convolution", V17, "O(n) against O(1) steps", slower, slower > 1,
                 [f"n = {each}" for each in n], note="ratio of times per multiplication"),
        within("layers-quadratic", "time of attention over that of convolution grows with n", V17, 1,
               float(np.log((middle[-1, at("attention")] / middle[-1, at("convolution")])
                            / (middle[-2, at("attention")] / middle[-2, at("convolution")])) / np.log(n[-1] / n[-2])),
               0.5, 1.5, note=f"exponent from n = {n[-2]} to {n[-1]}; nearer to 1 than to 0 or 2"),
    ]  # fmt: skip
