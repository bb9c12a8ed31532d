"""Tokens on the sphere: how fast they become one, by attention alone and beside a skip connection."""

import functools
import math
from collections.abc import Mapping

import jax
import numpy as np
from matplotlib.animation import Animation
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import experiments.figure
from experiments import animation, style
from experiments.figure import About
from experiments.figures.collapse import _globe, _sphere
from experiments.ledger import Claim, law, near, question
from rc_jax.collapse import sphere

ABOUT = About(
    title="Tokens on the sphere",
    caption=(
        "Tokens in three dimensions, brought back to one length after every layer (RMSNorm). Queries and keys are "
        "Gaussian, values a random rotation of its own for each layer. Top: the same tokens and weights at the start "
        "(hollow) and after 4 layers (filled), the far side faint. The discs show what tells the tokens apart, seen "
        "along their mean and magnified to one size. Bottom: change of log ‖res‖, and for attention only a fall over "
        "the one before it. Lines are medians, bands 5–95 % of initialisations, and dotted lines the close tokens' "
        "rate. Bottom right: nats per layer for tokens that are close already, against the strength a of the branch in "
        "x + a SA(x) (points: means ± 2 standard errors; line: closed form). The arithmetic is exact: floats of any "
        "size show one token after a few layers of attention alone. The animation passes through all layers."
    ),
    formula=(
        "attention only: log ‖res‖ × 3 a layer;   x ← (x + a O SA(x))/‖·‖: E log(angle′/angle) = "
        "½∫₋₁¹ log((1 + |c|)/2N) du,  N² = 1 + 2au + a²,  c = (1 + au)/N;   a = 1: 1 − 2 log 2"
    ),
    topic="collapse",
    minutes={"smoke": 0.3, "quick": 0.5, "full": 10.0},
)
KINDS = ("attention only", "+ skip", "+ skip, branches of 1/√L")
MEANING = ("attention", "skip", "full")
LEVELS = (0.05, 0.5, 0.95)
EARLY = 4  # layers after which the still picture shows the tokens
FRAMES_PER_LAYER = 5
Data = Mapping[str, np.ndarray]


class Spec(experiments.figure.Spec):
    """Tokens, layers, networks drawn, and how far tokens are spread at the start: ordinary and close ones."""

    tokens: int = 24
    depth: int = 12
    draws: int = 1024
    close_draws: int = 4096
    spread: float = 0.7
    close: float = 1e-3
    strengths: tuple[float, ...] = (0.125, 0.5, 1.0, 2.0, 4.0)


PRESETS = {
    "smoke": Spec(tokens=8, depth=6, draws=64, close_draws=256, strengths=(0.5, 1.0)),
    "quick": Spec(),
    "full": Spec(draws=2**15, close_draws=2**16),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """The tokens of one draw at every layer, quantiles of log ‖res‖ over many, and rates of close tokens."""
    key = jax.random.key(spec.seed)

    def draws(key: jax.Array, count: int, spread: float, skip: float, strength: float) -> list[np.ndarray]:
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(np.arange(count))
        shape = {"count": spec.tokens, "depth": spec.depth, "dtype": spec.dtype}
        return [np.asarray(part) for part in _sphere.draws(keys, spread, skip, strength, **shape)]

    # The skip's factor and the branch's strength of each of `KINDS`.
    settings = ((0.0, 1.0), (1.0, 1.0), (1.0, spec.depth**-0.5))
    drawn = [draws(key, spec.draws, spec.spread, *setting) for setting in settings]
    logs = np.stack([log_size - log_size[:, :1] for _, _, log_size in drawn]).astype(float)
    falls = np.diff(logs[0])
    exponent = falls[:, 1:] / falls[:, :-1]

    def rates(strength: float) -> np.ndarray:
        """Nats per layer by which the distance of two of the close tokens changes, one number for each draw."""
        close = draws(jax.random.fold_in(key, 1), spec.close_draws, spec.close, 1.0, strength)
        apart = close[2] + np.log(np.linalg.norm(close[1][:, :, 0] - close[1][:, :, 1], axis=-1))
        return (apart[:, -1] - apart[:, 0]).astype(float) / spec.depth

    strengths = np.array([*spec.strengths, spec.depth**-0.5])
    rate = np.stack([rates(float(strength)) for strength in strengths])
    return {
        **{f"shown_{name}": np.stack([each[at][0] for each in drawn]) for at, name in enumerate(_PARTS)},
        "log": np.quantile(logs, LEVELS, axis=1),
        "exponent": np.quantile(exponent, LEVELS, axis=0),
        "exponent_mean": exponent.mean(axis=0),
        "exponent_error": exponent.std(axis=0, ddof=1) / math.sqrt(spec.draws),
        "strengths": strengths,
        "law": sphere.approach_rate(strengths),
        "rate": rate.mean(axis=1),
        "rate_error": rate.std(axis=1, ddof=1) / math.sqrt(spec.close_draws),
    }


_PARTS = ("mean", "direction", "log_size")


def plot(data: Data) -> Figure:
    """Three spheres, each with its disc; the fall by layer, its exponent, and the rate against a branch's strength."""
    drawing, panels = style.figure(columns=3, rows=2, width=4.6, height=4.2)
    depth = data["shown_mean"].shape[1] - 1
    # The tokens at the start are hollow, those after `EARLY` layers filled; beside the sphere is their disc.
    for kind, ax in enumerate(panels[:3]):
        view = _view(data, kind)
        _globe.draw_globe(ax)
        colour = style.colour(MEANING[kind])
        _globe.scatter(ax, view.directions(0.0), colour, hollow=True)
        _globe.scatter(ax, view.directions(float(min(EARLY, depth))), colour)
        _globe.draw_disc(ax, view.differences(float(min(EARLY, depth))), colour, (1.45, -1.0), 0.42)
        ax.annotate(_globe.size_text(view.log_distance(float(min(EARLY, depth)))), (1.45, -1.48), ha="center", va="top")
        ax.set(xlim=(-1.1, 2.0), ylim=(-1.72, 1.1))
        ax.set_title(KINDS[kind].replace("√L", f"√{depth}"))
    _plot_falls(panels[3], data)
    _plot_exponent(panels[4], data)
    _plot_rates(panels[5], data)
    return drawing


def _view(data: Data, kind: int) -> _globe.View:
    return _globe.View(*(np.asarray(data[f"shown_{name}"][kind], float) for name in _PARTS))


def _plot_falls(ax: Axes, data: Data) -> None:
    log = data["log"]  # level, kind, layer
    layer = np.arange(log.shape[-1])
    for kind, label in enumerate(KINDS):
        style.bands(ax, layer, *log[:, kind], meaning=MEANING[kind], label=label)
    steep = log[1, 1, -1] + (math.log(4) - 1) * (layer[-1] - layer[4:])
    ax.plot(layer[4:], steep, color=style.colour("theory"), linestyle=":", label="1 − 2 log 2 a layer")
    ax.set_yscale("symlog", linthresh=10, linscale=2)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.panel(ax, "layer", "change of log ‖res‖ (nats)", "Fall of the residual", legend="lower left")


def _plot_exponent(ax: Axes, data: Data) -> None:
    exponent = data["exponent"]
    layer = np.arange(2, exponent.shape[-1] + 2)
    style.bands(ax, layer, *exponent, meaning="attention", marker="o", label="attention only")
    style.reference(ax, y=3.0, text="3: doubly exponential", meaning="theory")
    style.reference(ax, y=1.0, text="1: exponential")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(0, 6)
    ratio = "fall at this layer / fall at the layer before"
    style.panel(ax, "layer", ratio, "Exponent of the fall", legend="upper right")


def _plot_rates(ax: Axes, data: Data) -> None:
    order = np.argsort(data["strengths"])
    strengths, rates, errors = (data[name][order] for name in ("strengths", "rate", "rate_error"))
    fine = np.geomspace(strengths[0] / 1.3, strengths[-1] * 1.3, 200)
    ax.plot(fine, -sphere.approach_rate(fine), color=style.colour("theory"), label="closed form")
    ax.plot(fine[fine < 1], fine[fine < 1] ** 2 / 3, color=style.colour("reference"), linestyle=":", label="a²/3")
    ax.errorbar(strengths, -rates, 2 * errors, fmt="o", color=style.colour("skip"), label="measured")
    ax.plot([1], [2 * math.log(2) - 1], "x", color=style.colour("theory"), markersize=9, label="a = 1: 2 log 2 − 1")
    rate = "nats per layer by which tokens approach"
    style.panel(ax, "a, strength of the branch", rate, "Close tokens, with skip", log="xy", legend="lower right")


def animate(data: Data) -> Animation:
    """The tokens of the three networks pass through their layers; in the discs, what still tells them apart."""
    depth = data["shown_mean"].shape[1] - 1
    drawing, panels = style.figure(columns=3, rows=1, width=3.0, height=4.6)
    views = [_view(data, kind) for kind in range(len(KINDS))]
    # What moves: the dots on the sphere, those in the disc, and the text below it.
    parts = []
    for kind, ax in enumerate(panels):
        colour = style.colour(MEANING[kind])
        _globe.draw_globe(ax)
        ax.set_title(KINDS[kind].replace(", branches of", ",").replace("√L", f"√{depth}"))
        parts.append((
            _globe.scatter(ax, views[kind].directions(0.0), colour),
            _globe.draw_disc(ax, views[kind].differences(0.0), colour, (0.0, -1.78), 0.55),
            ax.annotate("", (0.0, -2.4), ha="center", va="top"),
        ))  # fmt: skip
        ax.set(xlim=(-1.1, 1.1), ylim=(-2.75, 1.08))
    clock = drawing.suptitle("layer 0", fontsize=11)

    def update(moment: float) -> None:
        clock.set_text(f"layer {math.floor(moment + 1e-9)} of {depth}")
        for view, (dots, disc, text) in zip(views, parts, strict=True):
            _globe.move(dots, view.directions(moment))
            disc.set_offsets(_globe.in_disc(view.differences(moment), (0.0, -1.78), 0.55))
            text.set_text(_globe.size_text(view.log_distance(moment)))

    moments = [at for layer in range(depth) for at in animation.eased(layer, layer + 1, FRAMES_PER_LAYER)]
    return animation.moving(drawing, update, [*moments, float(depth)])


# The rate at which close tokens become one is confirmed to this distance.
NATS = 0.025


def claims(data: Data) -> list[Claim]:
    """The rates at which close tokens with a skip become one on the sphere, and the cube without a skip."""
    strengths, closed, rate, error = (data[name] for name in ("strengths", "law", "rate", "rate_error"))
    # The strength 1 has a rate of its own.
    one = int(np.argmin(np.abs(strengths - 1)))
    three = (
        "three dimensions; Gaussian queries and keys, a uniform random rotation as W_V W_O; RMSNorm after each layer"
    )
    derived = functools.partial(
        law,
        proof="derived",
        place="rc_jax/collapse/sphere.py",
        neighbours=["noci2022"],
        hypotheses=f"{three}; tokens close together, to first order in their distance",
        interval_from="our tolerance: 0.025 nats",
    )
    return [
        question("sphere-cube", "By what factor does each layer of attention alone multiply the fall of log ‖res‖ when "
                 "tokens are brought back to one length after it?", float(data["exponent_mean"][-1]),
                 hypotheses=three, standard_error=float(data["exponent_error"][-1]),
                 note=f"mean exponent at layer {len(data['exponent_mean']) + 1}; without normalisation collapse-cube "
                 "has this number"),
        derived("sphere-skip-rate", "With a skip connection of equal strength, log distance of close tokens changes by "
                "1 − 2 log 2 a layer.", float(rate[one]), near(1 - 2 * math.log(2), NATS),
                standard_error=float(error[one]), applies=[abs(strengths[one] - 1) < 1e-6], reads=[strengths],
                note="exponential, not doubly: a factor e/4 a layer"),
        derived("sphere-strength", "With branches of strength a in x + a SA(x), log distance of close tokens changes "
                "by ½∫₋₁¹ log((1 + |c|)/2N) du a layer, with N² = 1 + 2au + a² and c = (1 + au)/N.",
                rate - closed, near(0, NATS), where=[f"a = {a:.3g}" for a in strengths], standard_error=error,
                reads=[closed],
                note=f"measured rate less the integral; rates {rate.min():.3g} … {rate.max():.3g} nats a layer"),
    ]  # fmt: skip
