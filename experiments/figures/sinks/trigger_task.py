"""A task that is said to force softmax attention to form a sink, and ReLU attention not: trained, for many seeds."""

from collections.abc import Mapping
from dataclasses import field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from matplotlib.figure import Figure as Drawing

from experiments.figures import _replicates
from experiments.figures._replicates import failures, mean_and_error, seed_band
from experiments.figures.sinks import _trigger
from experiments.figures.sinks._trigger import KINDS, Task
from experiments.ledger import Measured, at_least, at_most, published
from experiments.lib import figure, style

ABOUT = figure.About(
    title="A task that needs a sink",
    caption=(
        "One token of a sequence asks for the mean of the tokens so far; all others must answer zero. Attention is "
        "trained on it with Adam in three kinds: softmax rows, ReLU rows over the number of tokens seen, and softmax "
        "with one more logit of 0 in its denominator. Solid lines are one layer of one head; dashed lines are two "
        "layers of two heads with skip connections. First: error over that of answering zero. Second: weight of the "
        "first token in the rows that must answer zero, in the head where it is largest. Bands reach from the smallest "
        "to the largest over seeds. Third: size of that token's output in this head over the mean of the others. "
        "The others: mean rows of one head where the trigger is the middle token."
    ),
    formula="x_j ↦ (x₂ + … + x_j)/(j − 1) at the trigger j, else 0;   rows e^s/Σe^s,  max(s, 0)/j,  e^s/(1 + Σe^s)",
    topic="training",
    minutes={"smoke": 0.1, "quick": 0.5, "full": 60},
)

# Fixed before anything was measured. A head with a sink gives more than 0.3 to the first token (the threshold of Gu et
# al. 2025); a task is solved at a twentieth of the error of answering zero; a value is negligible below a fifth.
SINK, SOLVED, NEGLIGIBLE = 0.3, 0.05, 0.2
COLOURS = ("softmax", "relu_squared", "linear")


class Spec(figure.Spec):
    """The networks, seeds, steps, steps between records, sequences of a step and held-out ones, learning rate."""

    tasks: tuple[Task, ...] = field(default_factory=lambda: (Task(), Task(layers=2, heads=2)))
    seeds: int = 4
    steps: int = 1000
    every: int = 50
    batch: int = 32
    test: int = 256
    rate: float = 0.01


PRESETS = {
    "smoke": Spec(tasks=(Task(tokens=4, features=5),), seeds=2, steps=4, every=2, batch=4, test=16),
    "quick": Spec(),
    "full": Spec(
        tasks=tuple(Task(16, 16, layers, heads) for layers, heads in ((1, 1), (2, 2), (4, 4))), seeds=8, steps=5000,
        every=250, batch=64, test=1024, rate=0.003,
    ),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By network: error, and the first token's weight and value in the head with the largest one (seed, kind, record).

    Also the mean rows (kind, token, token) of the first network after training, of its first seed.
    """
    key, data = jax.random.key(spec.seed), dict[str, np.ndarray]()
    settings = {"kind": jnp.arange(len(KINDS)), "rate": jnp.full(len(KINDS), spec.rate)}
    for index, task in enumerate(spec.tasks):
        held_out = task.draw(spec.test, jax.random.fold_in(key, 0), 0)
        done = _replicates.train(
            jax.random.fold_in(key, 1), task.build, _trigger.loss, partial(task.draw, spec.batch),
            settings=settings, seeds=spec.seeds, steps=spec.steps, every=spec.every, optimiser=_trigger.optimiser,
            observe=Partial(_trigger.observe, held_out),
        )  # fmt: skip
        # Of all heads the one that gives the first token most, at each record.
        of_heads = {name: done.metrics[name].reshape(*done.metrics["error"].shape, -1) for name in ("sink", "value")}
        strongest = np.argmax(of_heads["sink"], axis=-1)[..., None]
        measures = {name: np.take_along_axis(each, strongest, axis=-1)[..., 0] for name, each in of_heads.items()}
        measures |= {"error": done.metrics["error"], "failed": done.failed}
        data |= {f"{index}_{name}": value for name, value in measures.items()}
        if not index:
            data |= {"map": done.metrics["map"][0, :, -1, 0, 0], "step": done.step}
    shapes = np.array([[task.layers, task.heads, task.tokens, task.features] for task in spec.tasks])
    return data | {"shapes": shapes}


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Error and the first token's weight during training; mean rows after it."""
    drawing, panels = style.figure(columns=3, rows=2, width=4.6, height=3.9)
    (error, sink, value), maps = panels[:3], panels[3:]
    # During training: colours are kinds of rows, dashes networks.
    for index in range(min(len(data["shapes"]), 2)):
        for kind, name in enumerate(KINDS):
            look = {"color": style.colour(COLOURS[kind]), "linestyle": style.DASHES[index]}
            for ax, name_of in ((error, "error"), (sink, "sink"), (value, "value")):
                low, middle, high = seed_band(data[f"{index}_{name_of}"][:, kind])
                ax.fill_between(data["step"], low, high, color=look["color"], alpha=0.15, linewidth=0)
                ax.plot(data["step"], middle, **look, label=None if index else name)
    if len(data["shapes"]) > 1:
        layers, heads = data["shapes"][1, :2]
        error.plot([], [], color=style.colour("theory"), linestyle=style.DASHES[1],
                   label=f"{layers} layers of {heads} heads")  # fmt: skip
    style.reference(error, y=SOLVED, text="learnt below")
    style.reference(sink, y=SINK, text="threshold of a sink")
    style.reference(value, y=NEGLIGIBLE, text="negligible")
    for ax in (error, value):
        ax.set_yscale("log")
    style.panel(error, "step (of Adam)", "error over that of answering 0", "Error on new sequences", legend="best")
    style.panel(
        sink, "step (of Adam)", "weight of the first token", "The first token in rows that answer 0", legend=None
    )
    style.panel(value, "step (of Adam)", "size over that of other tokens", "Value of the first token, by the output")
    # After training: the mean rows of the first network.
    look = {"vmin": 0, "vmax": 1, "cmap": "viridis", "interpolation": "nearest"}
    images = [ax.imshow(rows, **look) for ax, rows in zip(maps, data["map"], strict=True)]
    for ax, name in zip(maps, KINDS, strict=True):
        style.labels(ax, "token seen", "token", name)
        ax.grid(visible=False)
    drawing.colorbar(images[0], ax=maps, label="weight")
    return drawing


def _names(data: Mapping[str, np.ndarray]) -> list[str]:
    return [f"{layers}-layer {heads}-head" for layers, heads in data["shapes"][:, :2]]


def _after_training(data: Mapping[str, np.ndarray], name: str, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Means over seeds after training, and their standard errors, by network."""
    ends = [data[f"{index}_{name}"][:, kind, -1] for index in range(len(data["shapes"]))]
    means, errors = zip(*(mean_and_error(values) for values in ends), strict=True)
    return np.array(means), np.array(errors)


def _numbers(data: Mapping[str, np.ndarray]) -> dict[str, str | int]:
    """The size of the sequences, and the trainings that stopped."""
    networks = range(len(data["shapes"]))
    stopped = failures(np.concatenate([data[f"{index}_failed"] for index in networks], axis=0), KINDS)
    tokens, features = data["shapes"][0, 2:]
    return {"tokens": int(tokens), "features": int(features), "stopped": stopped or "none"}


def _sink_and_solved(data: Mapping[str, np.ndarray], kind: int, sign: int) -> Measured:
    """How far the first token's weight lies above (sign 1) or below (−1) that of a sink, and the error below `SOLVED`.

    Both of all networks: only networks that solve the task decide.
    """
    (sink, of_sink), (error, of_error) = (_after_training(data, name, kind) for name in ("sink", "error"))
    names = _names(data)
    return Measured(
        np.append(sign * (sink - SINK), SOLVED - error),
        standard_error=np.append(of_sink, of_error),
        where=[*names, *(f"error, {name}" for name in names)],
        numbers=_numbers(data),
    )


def _first_value(data: Mapping[str, np.ndarray]) -> Measured:
    """Size of the first token's output over the mean of the others, in softmax rows of the smallest network.

    It is not run unless that network solves the task with a sink.
    """
    (value, of_value), (sink, _), (error, _) = (
        _after_training(data, name, KINDS.index("softmax")) for name in ("value", "sink", "error")
    )
    asked = np.array([sink[0] > SINK and error[0] < SOLVED])
    return Measured(
        value[:1], standard_error=of_value[:1], where=_names(data)[:1], applies=asked, reads=[sink[:1], error[:1]],
        numbers=_numbers(data),
    )  # fmt: skip


SETTING = "sequences of <tokens> tokens with <features> features; layers × heads as named"
ranmilo = partial(
    published,
    source="ranmilo2026",
    place="abstract",
    interval=at_least(0),
    interval_from="a head with a sink: 0.3, Gu et al. 2025; solved: our threshold",
)
MEAN = "mean over seeds, in the head that has the largest; trainings that stopped: <stopped>"
ROWS = (
    ranmilo(
        "trigger-softmax",
        "A softmax network that learns to average on a trigger, and to answer zero otherwise, forms a sink.",
        lambda data: _sink_and_solved(data, KINDS.index("softmax"), 1),
        hypotheses=SETTING,
        note=f"measured: the weight less {SINK:g}, and {SOLVED:g} less the error; {MEAN}",
    ),
    ranmilo(
        "trigger-relu",
        "ReLU attention without normalisation learns the same task without a sink.",
        lambda data: _sink_and_solved(data, KINDS.index("ReLU"), -1),
        hypotheses=f"{SETTING}; weights over the number of tokens seen, as in its code",
        note=f"measured: {SINK:g} less the weight, and {SOLVED:g} less the error; {MEAN}",
    ),
    published(
        "trigger-nop",
        "A sink that serves to add nothing has a negligible value.",
        _first_value,
        at_most(NEGLIGIBLE),
        source="fesser2026",
        place="abstract",
        hypotheses=f"the source's tasks are its own; here one layer of one head, {SETTING}",
        interval_from="our tolerance: a fifth",
        note="size of the first token's output over the mean of the others",
    ),
)
