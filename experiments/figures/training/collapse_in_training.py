"""Collapse during training: which networks tell tokens apart, which learn to, and what their attention does."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures._replicates import failures, mark_failed, mean_and_error, seed_band
from experiments.figures.training._collapse_in_training import SETTINGS, SKIPPING, VARIANTS, one_answer, trained
from experiments.ledger import Claim, at_least, at_most, prediction
from experiments.lib import figure, style
from experiments.lib.figure import About

ABOUT = About(
    title="Collapse during training",
    caption=(
        "Seven networks of one depth learn to answer every token with the mirrored one of its sequence. If its tokens "
        "have become one, a network gives one answer per sequence (dashed: the best that it can reach). Lines are "
        "medians, bands span all seeds. Without skip connections the tokens collapse within the network, whatever its "
        "parts, and training does not undo it. With skip connections the network learns. In the second row the four "
        "that learn start once more, from tokens that differ by 1e-4 of their size. The last panel shows shares of the "
        "output by length of the path, with skip connections only. Arithmetic in float32 does not resolve relative "
        "residuals below 1e-7. Preset quick has 3 seeds, a width of 16 and few steps: it shows which networks learn at "
        "all, not where they end."
    ),
    formula="‖res(X^L)‖/‖X^L‖;   S = E|a|/√E a² of attention rows;   share of length k = ⟨Y_k, X^L⟩/‖X^L‖²",
    topic="training",
    minutes={"smoke": 0.2, "quick": 0.5, "full": 40.0},
)
INDEX = {name: index for index, name in zip((0, 6, 1, 2, 3, 4, 5), VARIANTS, strict=True)}
# Fixed before anything was measured: collapsed is a thousandth, kept or recovered a tenth. To carry is nine tenths.
COLLAPSED, KEPT, CARRIED = 1e-3, 0.1, 0.9
FLOOR = 1e-8
METRICS = ("accuracy", "residual", "sparsity", "entropy", "share")
TEXTS = [f"{name}{', from nearly equal tokens' if equal else ''}" for name, equal in SETTINGS]
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Shape of the networks, of the task and of the training; `collapsed`: how far apart nearly equal tokens start."""

    d_model: int = 16
    depth: int = 6
    tokens: int = 6
    symbols: int = 8
    batch: int = 16
    seeds: int = 3
    steps: int = 300
    every: int = 30
    rate: float = 5e-3
    collapsed: float = 1e-4
    held_out: int = 64


PRESETS = {
    "smoke": Spec(d_model=4, depth=2, tokens=4, symbols=4, batch=4, seeds=2, steps=4, every=2, held_out=8),
    "quick": Spec(),
    "full": Spec(d_model=32, tokens=8, symbols=10, batch=32, seeds=5, steps=2000, every=100, rate=2e-3, held_out=512),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Metrics by seed, setting and record (residuals by layer too); accuracy of one answer per sequence, and of one."""
    done, held_out = trained(spec)
    return {name: done.metrics[name] for name in METRICS} | {
        "step": done.step,
        "failed": done.failed,
        "one_answer": one_answer(held_out),
        "chance": np.asarray(np.bincount(held_out.ravel()).max() / held_out.size),
    }


def plot(data: Data) -> Figure:
    """Accuracy and residual for both starts, residual by layer, S, entropy, shares of paths."""
    drawing, panels = style.figure(columns=4, rows=2, width=4.2, height=3.7)
    relative = "relative residual, ‖res(X^L)‖/‖X^L‖"
    # Both starts: accuracy and residual during training.
    for row, equal in ((panels[:4], False), (panels[4:], True)):
        start = ", tokens start nearly equal" if equal else ""
        _over_time(row[0], data, data["accuracy"], equal)
        style.reference(row[0], y=float(data["one_answer"]), text="one answer per sequence")
        style.reference(row[0], y=float(data["chance"]), text="one answer")
        style.panel(row[0], "step", "accuracy, held out", f"Accuracy{start}")
        _over_time(row[1], data, np.maximum(data["residual"][..., -1], FLOOR), equal)
        style.reference(row[1], y=COLLAPSED, text="collapsed below")
        style.panel(row[1], "step", relative, f"Residual{start}", log="y")
    for variant in VARIANTS:
        values, appearance = (
            np.maximum(data["residual"][:, SETTINGS.index((variant, False))], FLOOR),
            _appearance(variant),
        )
        layers = np.arange(values.shape[-1])
        style.bands(panels[2], layers, *seed_band(values[:, -1]), **appearance)
        panels[2].plot(
            layers, seed_band(values[:, 0])[1], color=appearance["color"], linestyle=style.DASHES[1], linewidth=1
        )
    style.reference(panels[2], y=COLLAPSED, text="collapsed below")
    # Rows of attention during training, and shares of paths before and after it.
    style.panel(panels[2], "layer l", relative.replace("L", "l"), "By layer: trained, and before (dashed)", log="y")
    _over_time(panels[3], data, data["sparsity"], False)
    style.panel(panels[3], "step", "S, smaller is sparser", "Sparsity of attention rows")
    _over_time(panels[6], data, data["entropy"], False)
    style.panel(panels[6], "step", "entropy / log n", "Entropy of attention rows")
    share = data["share"][:, SETTINGS.index(("skip", False))]
    lengths = np.arange(share.shape[-1])
    style.bands(panels[7], lengths, *seed_band(share[:, 0]), label="before training", **_appearance("LN"))
    style.bands(panels[7], lengths, *seed_band(share[:, -1]), label="after", **_appearance("skip"))
    style.panel(
        panels[7], "length k of the path", "share of the output", "Paths, skip connections only", legend="upper right"
    )
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(VARIANTS))
    return drawing


def _appearance(variant: str) -> dict[str, Any]:
    appearance = style.cycle(INDEX[variant])
    return {"color": appearance["color"], "marker": appearance["marker"]}


def _over_time(ax: Axes, data: Data, values: np.ndarray, equal: bool) -> None:
    """Values (seed, setting, record) of the variants that start from nearly equal tokens, or of the others."""
    columns = [index for index, (_, nearly) in enumerate(SETTINGS) if nearly == equal]
    for column in columns:
        variant = SETTINGS[column][0]
        style.bands(ax, data["step"], *seed_band(values[:, column]), label=variant, **_appearance(variant))
    stopped = data["failed"][:, columns].ravel()
    mark_failed(ax, stopped, stopped >= 0)


def claims(data: Data) -> list[Claim]:
    """Predictions for all settings, made before the run: collapse, learning, recovery, sparsity and short paths."""
    without = [index for index, (name, _) in enumerate(SETTINGS) if name not in SKIPPING]
    skipping = [SETTINGS.index((name, False)) for name in SKIPPING]
    again = [SETTINGS.index((name, True)) for name in SKIPPING]
    # What the statements are about: ‖res‖/‖X‖ after the last layer, accuracy gained over one answer per sequence, the
    # change of S over training, and the share of the output on paths of at most half the depth.
    residual = np.median(data["residual"][..., -1], axis=0)  # setting, record
    gain = data["accuracy"][..., -1] - data["one_answer"]
    change = (data["sparsity"][..., -1] - data["sparsity"][..., 0])[:, skipping]
    share = data["share"][:, SETTINGS.index(("skip", False))][:, [0, -1]]
    short = share[..., : (share.shape[-1] - 1) // 2 + 1].sum(axis=-1)

    stopped = failures(data["failed"], TEXTS)
    row = partial(prediction, hypotheses=f"{len(gain)} seeds, one task", interval_from="our tolerance")
    medians = partial(row, note="; ".join(filter(None, ("medians over seeds", stopped))))
    over = f"accuracy less {float(data['one_answer']):.3f}, mean over seeds"
    learns = partial(row, interval_from="the accuracy of one answer per sequence",
                     note="; ".join(filter(None, (over, stopped))))  # fmt: skip
    return [
        medians(
            "training-pure-collapsed", "Without skip connections ‖res‖/‖X‖ after the last layer is below a thousandth, "
            "before training and after.", residual[without][:, [0, -1]].ravel(), at_most(COLLAPSED),
            where=[f"{text}, {when}" for text in _at(without) for when in ("before", "after")],
        ),
        learns(
            "training-pure-blind", "Without skip connections training reaches no more than one answer per sequence "
            "does.", interval=at_most(0.0), where=_at(without), **_over_seeds(gain[:, without]),
        ),
        medians(
            "training-skip-kept", "With skip connections ‖res‖/‖X‖ after the last layer stays above a tenth "
            "throughout training.", residual[skipping].min(axis=1), at_least(KEPT), where=_at(skipping),
        ),
        learns(
            "training-skip-learns", "With skip connections training reaches more than one answer per sequence does.",
            interval=at_least(0.0), where=_at(skipping), **_over_seeds(gain[:, skipping]),
        ),
        medians(
            "training-recovers", "Networks whose tokens start as one end with ‖res‖/‖X‖ above a tenth.",
            residual[without + again, -1], at_least(KEPT), where=_at(without + again),
        ),
        learns(
            "training-recovers-accuracy", "Skip networks that start from nearly equal tokens reach more than one "
            "answer per sequence does.", interval=at_least(0.0), where=_at(again), **_over_seeds(gain[:, again]),
        ),
        row(
            "training-sparser", "Training makes the attention rows of skip networks sparser: S = E|p|/√E p² falls.",
            interval=at_most(0.0), interval_from="the sign of the change", where=_at(skipping),
            note="change of S, mean over seeds", **_over_seeds(change),
        ),
        row(
            "training-short-paths", "Paths of at most half the depth carry nine tenths of the output of a network with "
            "skips alone.", interval=at_least(CARRIED), where=["before training", "after"], note="mean over seeds",
            **_over_seeds(short),
        ),
    ]  # fmt: skip


def _at(indices: list[int]) -> list[str]:
    return [TEXTS[index] for index in indices]


def _over_seeds(samples: np.ndarray) -> dict[str, Any]:
    mean, error = mean_and_error(samples)
    return {"measured": mean, "standard_error": error}
