"""Effective depth: after how many layers of pure attention tokens cannot be told apart in a floating-point type."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from experiments import figure, style
from experiments.figure import About
from experiments.ledger import Claim, at_most, near, prediction
from rc_jax import attention, collapse, ensemble, network
from rc_jax.collapse import effective_depth

ABOUT = About(
    title="Effective depth",
    caption=(
        "Layers of pure attention until tokens are indistinguishable: their differences (root mean square) are below "
        "half a unit in the last place of what they share. Gaussian weights, exact arithmetic (points: means over "
        "initialisations with 2 standard errors, read between layers); lines: this package's closed form. Each layer "
        "triples the digits that agree, so float64 lasts a layer and a half longer than bfloat16, half a layer longer "
        "than float32. Width and heads hardly matter; the size of the logits does. Arrows: not reached in all networks."
    ),
    formula="u₁ = g²√((e^{σ²} − 1)/n),   u_(l+1) = m g⁴ u_l³/√k_l,   u_l √n g^(−2l) < ε/2;   σ = m g²",
    topic="arithmetic",
    minutes={"smoke": 0.2, "quick": 0.93, "full": 8.0},
)

LEVELS = (0.05, 0.5, 0.95)
HALF_ULP = {"bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}  # half of the spacing at 1
DTYPES = tuple(HALF_ULP)
MEANING = {"bfloat16": "corrected", "float32": "float32", "float64": "float64"}
MARKER = {"bfloat16": "^", "float32": "s", "float64": "o"}

# Fixed before depths were measured: the closed form is confirmed where it is right to half a layer; what "hardly
# matters" moves the depth by less than half a layer; plain arithmetic agrees when it is at most one layer off.
LAYERS, PLAIN = 0.5, 1.0
SWEEPS = ("width", "heads", "multiple", "gain")
NEVER = 999.0  # stored for a depth that the closed form does not reach


class Spec(figure.Spec):
    """Widths, heads and weight scales to sweep from a base, tokens, depth, and random initialisations."""

    dtype: str = "float64"  # so that plain float64 exists; the exact side works in float32
    tokens: int = 32
    depth: int = 8
    count: int = 32
    d_model: int = 64
    heads: int = 4
    widths: tuple[int, ...] = (16, 256)
    head_counts: tuple[int, ...] = (16,)
    multiples: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
    gains: tuple[float, ...] = (0.5, 0.71, 1.0, 1.19, 1.41)


PRESETS = {
    "smoke": Spec(tokens=8, depth=6, count=16, d_model=16, heads=2, widths=(32,), head_counts=(4,), multiples=(1.0,),
                  gains=(0.71, 1.0)),
    "quick": Spec(),
    "full": Spec(count=2048, widths=(16, 32, 128, 256, 512), head_counts=(1, 2, 8, 16, 32), depth=16),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """A shape with its weight scales: pairs of gain g of all matrices and multiple m of the logits' default scale."""

    d_model: int
    heads: int
    scales: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    plain: bool = False


def _cases(spec: Spec) -> dict[str, Case]:
    base = tuple((1.0, m) for m in spec.multiples) + tuple((g, 1.0) for g in spec.gains)
    return {
        "base": Case(spec.d_model, spec.heads, base, plain=True),
        **{f"width {width}": Case(width, spec.heads) for width in spec.widths},
        **{f"heads {heads}": Case(spec.d_model, heads) for heads in spec.head_counts},
    }


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By sweep: effective depths in each type, measured and predicted; the relative residual of the base by layer."""
    key = jax.random.key(spec.seed)
    cases = _cases(spec)
    drawn = {
        name: ensemble.run(_Networks(spec, case), jax.random.fold_in(key, index), spec.count, progress=True)
        for index, (name, case) in enumerate(cases.items())
    }

    def predicted(name: str, index: int) -> np.ndarray:
        case = cases[name]
        gain, multiple = case.scales[index]
        shape = {"tokens": spec.tokens, "d_model": case.d_model, "heads": case.heads, "depth": spec.depth}
        return effective_depth.log_relative_residuals(**shape, gain=gain, multiple=multiple)

    # Every point of a sweep: its value, its case, and its place among the weight scales of the case.
    at = spec.multiples.index(1.0)
    sweeps = {
        "width": sorted([(spec.d_model, "base", at)] + [(width, f"width {width}", 0) for width in spec.widths]),
        "heads": sorted([(spec.heads, "base", at)] + [(count, f"heads {count}", 0) for count in spec.head_counts]),
        "multiple": [(m, "base", i) for i, m in enumerate(spec.multiples)],
        "gain": [(g, "base", len(spec.multiples) + i) for i, g in enumerate(spec.gains)],
    }
    base = drawn["base"]
    data = {"layer": np.arange(spec.depth + 1), "relative": np.asarray(base.quantile(LEVELS)["relative"])[:, at]}
    data["relative_predicted"] = predicted("base", at)
    for sweep, points in sweeps.items():
        data[sweep] = np.array([value for value, _, _ in points], float)
        measured = {
            "depth": [drawn[name].mean["depth"][i] for _, name, i in points],
            "error": [drawn[name].standard_error["depth"][i] for _, name, i in points],
            "reached": [drawn[name].mean["reached"][i] for _, name, i in points],
            "left_out": [np.sum(drawn[name].nonfinite["depth"][i]) for _, name, i in points],
            "predicted": [[_depth(predicted(name, i), half) for half in HALF_ULP.values()] for _, name, i in points],
        }
        data |= {f"{sweep}_{what}": np.array(values) for what, values in measured.items()}
    for name in ("apart", "equal"):
        data |= {f"{name}_mean": np.asarray(base.mean[name]), f"{name}_error": np.asarray(base.standard_error[name])}
    data["plain_left_out"] = np.asarray(base.nonfinite["apart"])
    data["plain_median"] = np.asarray(base.quantile(LEVELS)["plain"])[1]
    return data


def _depth(logs: np.ndarray, half: float) -> float:
    return min(float(effective_depth.crossing(logs, math.log(half))), NEVER)


@dataclasses.dataclass(frozen=True)
class _Networks:
    """One initialisation at every weight scale of a case: relative residual by layer, depth in each type."""

    spec: Spec
    case: Case

    def __call__(self, key: jax.Array) -> dict[str, jax.Array]:
        spec, case = self.spec, self.case
        # All weight scales share one draw of tokens and weights.
        x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, case.d_model), "float32")
        stack = _stack(spec, case.d_model, case.heads)

        def one(pair: jax.Array) -> dict[str, jax.Array]:
            layers = network.random_layers(jax.random.fold_in(key, 1), stack, gain=pair[0], dtype="float32")
            scale = pair[1] / jnp.sqrt(jnp.asarray(stack.attention.head_width, "float32"))
            relative = _relative(layers, x, stack, scale)
            depths = jnp.stack([effective_depth.crossing(relative, math.log(half)) for half in HALF_ULP.values()])
            never = jnp.isinf(depths)
            return {
                "relative": relative,
                "depth": jnp.where(never, spec.depth, depths),
                "reached": jnp.where(jnp.isnan(depths), depths, 1 - never.astype("float32")),
            }

        swept = jax.lax.map(one, jnp.array(case.scales, "float32"))
        if case.plain:
            params = network.init(jax.random.fold_in(key, 1), stack, dtype="float32")
            swept |= self._plain(params, x, swept["depth"][case.scales.index((1.0, 1.0))])
        return swept

    def _plain(self, params: network.LayerParams, x: jax.Array, depth: jax.Array) -> dict[str, jax.Array]:
        """The network with weights and tokens rounded to each type, run in it; where its tokens stop differing."""
        spec, out = self.spec, []
        stack = _stack(spec, self.case.d_model, self.case.heads)
        for index, (dtype, half) in enumerate(HALF_ULP.items()):
            states = network.hidden_states(jax.tree.map(lambda w, t=dtype: w.astype(t), params), x.astype(dtype), stack)
            equal = jnp.all(states == states[:, :1], axis=(1, 2))
            # The relative residual of the plain tokens, and the first layer at which it is below a whole unit.
            wide = states.astype("float64")
            mean = jnp.mean(wide, axis=1)
            spread = jnp.sqrt(jnp.sum(jnp.square(wide - mean[:, None]), axis=(1, 2)))
            relative = jnp.log(spread / jnp.linalg.norm(mean, axis=1)) - 0.5 * math.log(spec.tokens)
            below = relative < math.log(2 * half)  # a whole unit: the rounding of either neighbour
            layer = jnp.where(jnp.any(below), jnp.argmax(below), spec.depth).astype("float64")
            layer = jnp.where(jnp.any(jnp.isnan(relative)), jnp.nan, layer)
            needed = jnp.ceil(depth[index]).astype("float64")
            out.append({
                "apart": layer - needed, "equal": equal.astype("float64")[-1], "plain": jnp.maximum(relative, -60.0)
            })  # fmt: skip
        return jax.tree.map(lambda *each: jnp.stack(each), *out)


def _relative(layers: network.Layers, x: jax.Array, stack: network.StackSpec, scale: jax.Array | None) -> jax.Array:
    """By layer: log of the root-mean-square difference from the mean token over the root-mean-square of that mean."""
    means = jnp.mean(network.hidden_states(layers, x, stack, scale=scale), axis=1)
    log_mean = jnp.log(jnp.linalg.norm(means, axis=1))
    return collapse.log_residuals(layers, x, stack, scale=scale) - log_mean - 0.5 * math.log(x.shape[0])


@functools.cache
def _stack(spec: Spec, d_model: int, heads: int) -> network.StackSpec:
    return network.StackSpec(attention=attention.AttentionSpec(d_model=d_model, heads=heads), depth=spec.depth)


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """The relative residual by layer with every type's threshold; effective depth against width, heads and scale."""
    drawing, (fall, width, heads, scale) = style.figure(columns=2, rows=2, width=5.6, height=4.0)
    # Upper left: the exact fall, its closed form, plain arithmetic, and half a unit of each type.
    layer = data["layer"]
    style.bands(fall, layer, *data["relative"], meaning="attention", label="exact")
    predicted = data["relative_predicted"][1:]
    fall.plot(layer[1:], predicted, color=style.colour("theory"), linestyle=":", label="closed form")
    for index, dtype in enumerate(DTYPES):
        color, median = style.colour(MEANING[dtype]), data["plain_median"][index]
        fall.plot(layer, median, label=f"plain {dtype}", fillstyle="none", **_points(dtype))
        fall.axhline(np.log(HALF_ULP[dtype]), color=color, linestyle=style.DASHES[1], linewidth=1)
    fall.set(xlim=(-0.2, 5.2), ylim=(-48, 5))
    fall.xaxis.set_major_locator(MaxNLocator(integer=True))
    label = "log (differences / common part) (nats)"
    style.panel(fall, "layer", label, "Differences against half a unit (dashed)", legend="lower left")
    for ax, sweep, x, title in ((width, "width", "width of the model", "Width"),
                                (heads, "heads", "number of heads", "Heads")):  # fmt: skip
        for index, dtype in enumerate(DTYPES):
            ax.plot(data[sweep], data[f"{sweep}_predicted"][:, index], color=style.colour(MEANING[dtype]))
            depth, error = data[f"{sweep}_depth"][:, index], data[f"{sweep}_error"][:, index]
            ax.errorbar(data[sweep], depth, yerr=2 * error, label=dtype, **_points(dtype))
        ax.set_ylim(0, 6)
        style.panel(ax, x, "effective depth (layers)", title, log="x", base=2, legend="lower right")
        _ticks(ax, data[sweep])
    _plot_scales(scale, data)
    return drawing


def _points(dtype: str) -> dict[str, Any]:
    return {"color": style.colour(MEANING[dtype]), "marker": MARKER[dtype], "linestyle": "none"}


def _ticks(ax: Axes, values: Iterable[float]) -> None:
    ax.xaxis.set_major_locator(FixedLocator(list(values)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([f"{value:g}" for value in values])


def _plot_scales(ax: Axes, data: Mapping[str, np.ndarray]) -> None:
    """Both sweeps of the weights against the logits' standard deviation at the first layer, σ = m g²."""
    sweeps = (("multiple", 1, "full", "-", "queries, keys"), ("gain", 2, "none", style.DASHES[1], "all weights"))
    for sweep, power, filled, dash, label in sweeps:
        sigma = data[sweep] ** power
        for index, dtype in enumerate(DTYPES):
            depth, error = data[f"{sweep}_depth"][:, index], data[f"{sweep}_error"][:, index]
            predicted, look = data[f"{sweep}_predicted"][:, index], _points(dtype)
            known, short = predicted < NEVER, data[f"{sweep}_reached"][:, index] < 1
            ax.plot(sigma[known], predicted[known], color=look["color"], linestyle=dash)
            ax.errorbar(sigma, depth, yerr=2 * error, fillstyle=filled, label=None if index else label, **look)
            # An arrow stands above depths that some networks do not reach.
            arrow: dict[str, Any] = {"marker": r"$\uparrow$", "color": look["color"], "linestyle": "none"}
            ax.plot(sigma[short], depth[short] + 0.35, markersize=9, **arrow)
    ax.set_ylim(0, float(data["layer"][-1]) + 1)
    x = "standard deviation of the first logits, σ"
    style.panel(ax, x, "effective depth (layers)", "Weight scale", log="x", base=2, legend="upper left")
    sigmas = np.concatenate([data["multiple"], data["gain"] ** 2])
    _ticks(ax, [value for value in (0.25, 0.5, 1, 2, 4) if sigmas.min() / 1.1 <= value <= 1.1 * sigmas.max()])


def claims(data: Mapping[str, np.ndarray]) -> list[Claim]:
    """The closed form, what the depth does not depend on, the triple of digits, and plain arithmetic: predictions."""
    before = "our tolerance: "
    depth_of = "The effective depth (layers until tokens cannot be told apart in a floating-point type)"
    rows = []
    for sweep in ("width", "heads"):
        depth, error, values = data[f"{sweep}_depth"], data[f"{sweep}_error"], data[sweep]
        # The standard error of largest minus smallest is that of the two depths.
        ends = depth.argmin(axis=0), depth.argmax(axis=0)
        spread_error = np.hypot(*(error[end, np.arange(error.shape[1])] for end in ends))
        rows.append(prediction(
            f"depth-{sweep}", f"{depth_of} moves by less than half a layer over {sweep} from {values.min():g} to "
            f"{values.max():g}.",
            np.ptp(depth, axis=0), at_most(LAYERS), interval_from=before + "half a layer", where=list(DTYPES),
            applies=np.full(len(DTYPES), values.size > 1), standard_error=spread_error, reads=[depth, error],
            left_out=data[f"{sweep}_left_out"],
            note=f"largest minus smallest mean depth over {values.min():g} … {values.max():g}"))  # fmt: skip
    more = np.diff(data["width_depth"], axis=1)
    more_error = np.hypot(data["width_error"][:, 1:], data["width_error"][:, :-1])
    agree = zip(data["equal_mean"], DTYPES, strict=True)
    return [
        *rows,
        _closed_form(data, depth_of, before),
        prediction("depth-digits", f"{depth_of} grows by at most 1.5 layers from bfloat16 to float32, and by at most 1 "
                   "from float32 to float64.", more.ravel(), at_most(np.tile([1.5, 1.0], len(more))),
                   interval_from=before + "1.5 layers and 1", standard_error=more_error.ravel(),
                   where=[f"to {dtype} at width {width:g}" for width in data["width"] for dtype in DTYPES[1:]],
                   left_out=data["width_left_out"], note="the cube says log₃(24/8) = 1 and log₃(53/24) = 0.72"),
        prediction("depth-plain", "In plain arithmetic tokens agree to a unit in the last place within one layer of "
                   "the effective depth (layers until tokens cannot be told apart in a floating-point type) of exact "
                   "arithmetic.", data["apart_mean"], near(0, PLAIN), interval_from=before + "one layer",
                   where=list(DTYPES), standard_error=data["apart_error"], reads=[data["equal_mean"]],
                   left_out=data["plain_left_out"],
                   note="mean layer found minus layer predicted; share of networks whose last tokens are equal bit for "
                   "bit: " + ", ".join(f"{share:.0%} in {dtype}" for share, dtype in agree)),
    ]  # fmt: skip


def _closed_form(data: Mapping[str, np.ndarray], depth_of: str, before: str) -> Claim:
    def joined(what: str) -> np.ndarray:
        return np.concatenate([data[f"{sweep}_{what}"].ravel() for sweep in SWEEPS])

    gap, error, left_out = joined("depth") - joined("predicted"), joined("error"), joined("left_out")
    where = [f"{dtype} {sweep} {value:g}" for sweep in SWEEPS for value in data[sweep] for dtype in DTYPES]
    # Where softmax saturates in some networks their residuals are not known, and neither is the mean depth.
    known = np.repeat(left_out == 0, len(DTYPES))
    # One point that is known and off decides; else what is not known leaves the row not run.
    fails = bool(np.any(np.abs(gap[known]) - 3 * error[known] > LAYERS))
    reached = known & (joined("predicted") < NEVER)
    close, largest = int(np.sum(np.abs(gap[known]) <= LAYERS)), np.abs(gap[reached]).max(initial=0.0)
    return prediction(
        "depth-closed-form", f"{depth_of} is that of the closed form, to half a layer, at every width, number of heads "
        "and weight scale.", gap, near(0, LAYERS), interval_from=before + "half a layer", where=where, applies=known,
        standard_error=error, reads=[gap[known], error[known]], left_out=0 if fails else left_out,
        hypotheses="Gaussian weights; the form is of first order in the logits' standard deviation σ",
        shown=f"{close} of {known.size} within ½ layer; largest gap {largest:.2g} layers where the form gives a "
        f"depth; at {int(np.sum(known & ~reached))} it gives none",
        note=f"it fails for σ > 1, where softmax saturates; {int(np.sum(~known))} points are not judged, because some "
        "networks' residuals are not known there")  # fmt: skip
