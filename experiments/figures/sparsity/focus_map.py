"""Which attention can focus: sparsity S of every way from logits to weights, on one colour scale."""

import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

import experiments.lib.figure
from experiments.ledger import Measured, at_least, at_most, law, published
from experiments.lib import style
from experiments.lib.figure import About
from rc_jax import sparsity

FOCUS = 0.05  # S below which a row counts as focused, and above which a floor counts as one
SHARE, POWER, FEATURES, LONGEST = 1 / 16, 6, 64, 4096
MODERATE = 4.0  # a γ at which softmax focuses, far from the largest on the map
ABOUT = About(
    title="All kernels on one map: which focus, and on what",
    caption=(
        "The maps show the sparsity S of a row of many weights (dark: focused) against what it depends on, in one "
        "colour scale. Twelve panels have weights f(logit), for logits of mean β and deviation γ. The weights of the "
        "others are no function of such a logit: linear attention, powers of cosine similarity, and decay. Linear "
        "attention has features elu + 1 of key coordinates of mean β and deviation γ under an even query of "
        f"{FEATURES} features, and any features against their spread and the query's unevenness. "
        "Titles are verdicts computed from the maps and from "
        f"points beyond them: S falls below {FOCUS:g} with γ at every β/γ; only towards β/γ → −∞, at every γ; only "
        f"there and with γ; or it has a floor. The white line is S = {FOCUS:g}."
    ),
    formula="S = E|f(β + γε)|/√E f(β + γε)²",
    topic="sparsity",
    minutes={"smoke": 0.1, "quick": 0.32, "full": 1.5},
    core=True,
)
BY_QUADRATURE = ("signed_exponential", "relu", "softplus", "sigmoid", "elu_plus_one", "tanh")
SPLITS = (0.0, *(sign * 2.0**k for k in range(-2, 5) for sign in (-1, 1)))  # panels narrow where these bend
MAPPED = (
    ("softmax", "softmax"), ("top", "softmax of the top 1/16"), ("signed_exponential", "sign(x) e^|x|"),
    ("relu_squared", "relu²"), ("relu", "relu"), ("softplus", "softplus"), ("sigmoid", "sigmoid"),
    ("elu_plus_one", "elu + 1"), ("identity", "identity"), ("power6", "x⁶"), ("tanh", "tanh"),
    ("cosine_squared", "cos² x"), ("linear", "linear, elu + 1 features"),
)  # fmt: skip
Data = Mapping[str, np.ndarray]


class Spec(experiments.lib.figure.Spec):
    """Points of each map along each axis."""

    dtype: str = "float64"
    points: int = 49


PRESETS = {"smoke": Spec(points=13), "quick": Spec(), "full": Spec(points=193)}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """S on the map, and beyond it: `far_…` at β/γ = ±30 and for γ down to 2⁻¹⁰."""
    inner = np.linspace(-8, 4, spec.points), 2.0 ** np.linspace(-4, 4, spec.points)
    outer = (
        np.array([-30.0, -15.0, -8.0, -4.0, -2.0, -1.0, 0.0, 4.0, 15.0, 30.0]),
        2.0 ** np.array([-10.0, -7.0, -4.0, 0, 2, 3]),
    )
    data = {"ratio": inner[0], "gamma": inner[1], "far_ratio": outer[0], "far_gamma": outer[1]}
    ratio, gamma = (np.concatenate(pair) for pair in zip(inner, outer, strict=True))
    maps = {name: np.asarray(value) for name, value in _maps(ratio, gamma, spec.dtype).items()}
    cut = spec.points  # what is inside of one and outside of the other is not used
    data |= {name: value[..., :cut, :cut] for name, value in maps.items()}
    data |= {f"far_{name}": value[..., cut:, cut:] for name, value in maps.items()}
    square = sparsity.from_kernel(sparsity.power(2).f, 0.0, 1.0)  # what cos² becomes at β = π/2 as γ → 0
    return data | _others(spec) | {"limit_cosine_squared": np.asarray(square)}


def _maps(ratio: np.ndarray, gamma: np.ndarray, dtype: str) -> dict[str, Array]:
    """S of everything that depends on (β/γ, γ): (γ, β/γ)."""
    g, r = jnp.broadcast_arrays(jnp.asarray(gamma, dtype)[:, None], jnp.asarray(ratio, dtype)[None])
    values, errors = _integrals(r, g)
    maps = dict(zip(BY_QUADRATURE, values, strict=True)) | {"error": errors}
    # cos² is bounded, so its two moments are closed: cos²x = (1 + cos 2x)/2, and E cos 2kx = e^(−2k²γ²) cos 2kβ for
    # x ~ N(β, γ²).
    even, odd = (jnp.exp(-2 * k * k * g * g) * jnp.cos(2 * k * r * g) for k in (1, 2))
    # Linear attention with independent features has S = 1/√(1 + (σ̃/μ̃)² ‖q̃‖₂²/‖q̃‖₁²); 1/√d is the norm ratio of an
    # even query.
    spread = jnp.sqrt(1 / jnp.square(jnp.maximum(maps["elu_plus_one"], 1e-300)) - 1)  # σ̃/μ̃ of one feature
    uneven = jnp.full_like(spread, FEATURES**-0.5)
    power = sparsity.power(POWER)
    at_ratio = sparsity.from_kernel(power.f, r[0], jnp.ones_like(r[0]), kinks=(0.0,))
    return maps | {
        "softmax": sparsity.exponential(g),
        "top": sparsity.top_share_exponential(g, SHARE),
        "relu_squared": sparsity.relu_squared(r, jnp.ones_like(r)),
        "identity": sparsity.identity(r, jnp.ones_like(r)),
        "power6": jnp.broadcast_to(at_ratio[None], r.shape),
        "cosine_squared": sparsity.from_moments((1 + even) / 2, (3 + 4 * even + odd) / 8),
        "linear": 1 / jnp.hypot(jnp.ones_like(spread), spread * uneven),
    }


@jax.jit
def _integrals(ratio: Array, gamma: Array) -> tuple[Array, Array]:
    """S by quadrature and its error, (kernel, γ, β/γ): one program for all kernels."""
    kernels = [sparsity.KERNELS[name].f for name in BY_QUADRATURE]
    kernels[0] = lambda x: jnp.exp(jnp.abs(x) - 64)  # |sign(x) e^|x|| over a number: S is the same, and fits

    def row(case: tuple[Array, Array, Array]) -> sparsity.Estimate:
        index, r, g = case
        return sparsity.from_kernel_with_error(lambda x: jax.lax.switch(index, kernels, x), r * g, g, kinks=SPLITS)

    count, (rows, columns) = len(kernels), ratio.shape
    index = jnp.repeat(jnp.arange(count), rows)
    integrals = jax.lax.map(row, (index, jnp.tile(ratio, (count, 1)), jnp.tile(gamma, (count, 1))))
    return integrals.value.reshape(count, rows, columns), integrals.error.reshape(count, rows, columns)


def _others(spec: Spec) -> dict[str, np.ndarray]:
    """S of weights that depend on neither β nor γ, against what they depend on."""
    uneven = FEATURES ** -np.linspace(0.5, 0, spec.points)
    spread = 10.0 ** np.linspace(-1, 1, spec.points)
    power, dim = 2.0 ** np.linspace(0, 5, spec.points), 2.0 ** np.linspace(0, 12, spec.points)
    half, n = 2.0 ** np.linspace(-1, 12, spec.points), 2.0 ** np.linspace(0, math.log2(LONGEST), spec.points)
    lam = 0.5 ** (1 / half)  # λ^half = 1/2
    return {
        "uneven": uneven, "spread": spread, "power": power, "dim": dim, "half": half, "n": n,
        "features": 1 / np.hypot(1, spread[:, None] * uneven),
        "cosine_similarity": np.asarray(sparsity.cosine_similarity_power(power[:, None], dim)),
        "cosine_limit": np.asarray(sparsity.cosine_similarity_power(power, 2.0**50)),
        "cosine_floor": np.asarray(sparsity.cosine_similarity_power(POWER, 2.0**50)),
        "decay": np.asarray(sparsity.decay(lam[:, None], n)),
        "decay_half": np.asarray(sparsity.decay(0.5, n)),
    }  # fmt: skip


def _floor(data: Data, name: str) -> float:
    """The least S on the map and beyond it."""
    return float(np.min([np.min(data[key]) for key in (name, f"far_{name}", f"limit_{name}") if key in data]))


def _left(data: Data, name: str) -> np.ndarray:
    """S at β/γ = −8 and beyond, where it is largest, by γ: of the map, and down to 2⁻¹⁰."""
    far = data[f"far_{name}"][:, data["far_ratio"] <= data["ratio"][0]]
    return np.concatenate([np.max(far, axis=1), data[name][:, 0]])


def _right(data: Data, name: str) -> float:
    """The least S at any β/γ ≥ 0."""
    far = data[f"far_{name}"][:, data["far_ratio"] >= 0]
    return float(np.minimum(data[name][:, data["ratio"] >= 0].min(), np.min(far)))


def _verdict(data: Data, name: str) -> str:
    """The verdict of a map: with γ, with β/γ, with both, or a floor."""
    if np.all(data[name][-1] < FOCUS):
        return "focuses with γ"
    left = _left(data, name)
    if _right(data, name) >= FOCUS > left[-1]:
        return "only as β/γ → −∞" if np.all(left < FOCUS) else "only as β/γ → −∞ and γ → ∞"
    return f"cannot: S ≥ {_floor(data, name):.3f}" if _floor(data, name) >= FOCUS else "in places"


def _by_power(data: Data) -> str:
    """From which power on cosines focus in many dimensions."""
    enough = data["cosine_limit"] < FOCUS
    least = float(data["cosine_limit"].min())
    return f"only with m, from {data['power'][np.argmax(enough)]:.2g}" if enough.any() else f"cannot: S ≥ {least:.3f}"


def plot(data: Data) -> Figure:
    """Sixteen maps and one bar."""
    drawing, axes = style.figure(columns=4, rows=4, width=2.95, height=2.75)
    images = []
    for ax, (name, title) in zip(axes, MAPPED, strict=False):
        images.append(_draw(ax, data["ratio"], data["gamma"], data[name], f"{title}\n{_verdict(data, name)}"))
        ax.set_yscale("log", base=2)
        ax.set_xticks([-8, -4, 0, 4])
        style.labels(ax, "β/γ", "γ (nats)")
    # Weights that do not depend on (β, γ) of a logit.
    uneven, cosine, decay = axes[len(MAPPED) :]
    _draw(uneven, data["uneven"], data["spread"], data["features"],
          f"linear, any features\nσ̃ ≤ μ̃: S ≥ {data['features'][data['spread'] <= 1].min():.3f}")  # fmt: skip
    uneven.set(xscale="log", yscale="log")
    uneven.set_xticks([1 / 8, 1 / 4, 1 / 2, 1], ["1/8", "1/4", "1/2", "1"])
    uneven.minorticks_off()
    style.labels(uneven, "‖q̃‖₂/‖q̃‖₁ (1/√d … 1)", "σ̃/μ̃")
    _draw(cosine, data["dim"], data["power"], data["cosine_similarity"],
          f"cos(angle)$^m$ (m = {POWER}: S ≥ {data['cosine_floor']:.3f})\n{_by_power(data)}")  # fmt: skip
    cosine.set_xscale("log", base=2)
    cosine.set_yscale("log", base=2)
    style.labels(cosine, "d, dimension of the keys", "m, power")
    lowest = data["decay_half"][-1]
    _draw(decay, data["n"], data["half"], data["decay"],
          "decay λ^(n−j)\n" + ("only by position, with n" if lowest < FOCUS else "in places"))  # fmt: skip
    decay.set_xscale("log", base=2)
    decay.set_yscale("log", base=2)
    style.labels(decay, "n, positions", "log 2/log(1/λ), half-life")
    bar = drawing.colorbar(images[0], ax=axes, label="sparsity S", extend="min", shrink=0.5, aspect=40)
    bar.set_ticks([-3, -2, math.log10(FOCUS), -1, 0], labels=["0.001", "0.01", f"{FOCUS:g}", "0.1", "1"])
    return drawing


def _draw(ax: Axes, x: np.ndarray, y: np.ndarray, value: np.ndarray, title: str) -> QuadMesh:
    logs = np.log10(np.clip(np.nan_to_num(value, nan=1e-300), 1e-300, None))
    image = ax.pcolormesh(x, y, logs, vmin=-3, vmax=0, cmap="viridis", shading="gouraud", rasterized=True)
    if logs.min() < math.log10(FOCUS) < logs.max():
        ax.contour(x, y, logs, levels=[math.log10(FOCUS)], colors="white", linewidths=1, linestyles="solid")
    ax.set_title(title, fontsize=9.5)
    ax.grid(False)
    return image


# Kernels by class: those that focus with γ, with β/γ → −∞ and γ together, and never.
WITH_GAMMA = ("top", "signed_exponential")
WITH_BOTH = ("softplus", "sigmoid", "elu_plus_one")
NEVER = ("tanh", "cosine_squared")
TITLES = dict(MAPPED)


def _left_and_right(data: Data, name: str) -> Measured:
    """Of one kernel, the least S where β ≥ 0 and the largest where β/γ ≤ −8."""
    right, left = _right(data, name), float(_left(data, name).max())
    return Measured(
        [right, left],
        where=["least S where β ≥ 0", "largest S where β/γ ≤ −8"],
        reads=[data[name]],
        numbers={"right": right, "left": left},
    )


def _softmax_at_moderate(data: Data) -> Measured:
    """The largest S of softmax at a moderate γ, and at the largest of the map."""
    softmax = data["softmax"]
    moderate = int(np.argmin(np.abs(data["gamma"] - MODERATE)))
    return Measured(
        softmax[moderate].max(),
        reads=[softmax],
        numbers={"moderate": data["gamma"][moderate], "last": data["gamma"][-1], "at_last": softmax[-1].max()},
    )


def _linear_over_softmax(data: Data) -> Measured:
    """Share of the map where linear attention focuses, over that of softmax."""
    softmax, linear = (float(np.mean(data[name] < FOCUS)) for name in ("softmax", "linear"))
    return Measured(
        linear / max(softmax, 1e-9),
        reads=[data["linear"], data["softmax"]],
        numbers={"right": _right(data, "linear")},
    )


def _both(data: Data) -> Measured:
    """Kernels that are like eˣ far on the left, and like a line or a constant on the right."""
    far, softmax = data["far_ratio"] == data["far_ratio"].min(), np.exp(-np.square(data["far_gamma"]) / 2)
    gap = [np.abs(data[f"far_{name}"][:, far][:, 0] - softmax).max() for name in WITH_BOTH]
    right = [_right(data, name) for name in WITH_BOTH]
    least = [data[name][data["gamma"] <= 1].min() for name in WITH_BOTH]
    what = ("gap from e^(−γ²/2) at β/γ = −30", "least S where β ≥ 0", "least S where γ ≤ 1")
    return Measured(
        [*gap, *right, *least],
        where=[f"{name}: {each}" for each in what for name in WITH_BOTH],
        numbers={"gap": max(gap), "right": min(right), "least": min(least)},
    )


# Of `_left_and_right`; S → 0 is read as S < `FOCUS` where the source lets γ or β/γ grow.
ONLY_LEFT = ([FOCUS, -np.inf], [np.inf, FOCUS])
ZERO = rf"$S\to0$ is read as $S\lt{FOCUS:g}$"
su = functools.partial(published, source="su2023concentrate")
own = functools.partial(
    law,
    place="docs/sparsity.md",
    neighbours=["su2023concentrate"],
    hypotheses=r"scores $N(\beta,\gamma^{2})$, "
    r"$n\to\infty$",
)
COUNTS = rf"$S\lt{FOCUS:g}$ counts as focused"
ROWS = (
    su(
        "focus-softmax",
        r"The sparsity $S$ of softmax rows tends to 0 as $\sigma$ or $\lVert q\rVert$ tends to infinity.",
        _softmax_at_moderate,
        at_most(FOCUS),
        formula=True,
        place="section with two examples",
        hypotheses=r"Gaussian keys, $n\to\infty$; any $\beta$",
        interval_from=ZERO,
        note=r"largest $S$ over $-8\leq\beta/\gamma\leq4$ at $\gamma=\sigma\lVert q\rVert=<moderate:.3g>$; at "
        r"$\gamma=<last:.3g>$ it is <at_last:.0e>",
    ),
    su(
        "focus-relu2",
        r"With $\mathrm{relu}^{2}$ the sparsity $S$ has a chance to come near 0 only if $\beta\lt0$.",
        lambda data: _left_and_right(data, "relu_squared"),
        ONLY_LEFT,
        formula=True,
        place="section with two examples",
        hypotheses=r"Gaussian keys, $n\to\infty$",
        interval_from=ZERO,
        note=r"least $S$ where $\beta\geq0$: <right:.3f>; largest where $\beta/\gamma\leq-8$: <left:.1e>, at every "
        r"$\gamma$",
    ),
    su(
        "focus-identity",
        "Without an activation $S$ does not come near 0 but has a rather high lower limit.",
        lambda data: _floor(data, "identity"),
        at_least(0.5),
        formula=True,
        place="section on minimal linear attention, with its plot",
        hypotheses=r"Gaussian keys, $n\to\infty$",
        interval_from="our reading of rather high",
        note=r"least $S$ on the map and beyond it; the infimum is $\sqrt{2/\pi}$",
    ),
    su(
        "focus-linear",
        "Attention that is quadratic in length can be arbitrarily sparse, and linear attention does not easily get "
        "there.",
        _linear_over_softmax,
        at_most(0.5),
        formula=True,
        place="summary",
        hypotheses=rf"linear attention of {FEATURES} features $\mathrm{{elu}}+1$ of Gaussian keys, even query; "
        "softmax for the other",
        interval_from="not easily: on at most half as much of the map, our choice",
        note=rf"share of the map where $S\lt{FOCUS:g}$, linear over softmax: where almost all features are near 0; "
        r"least $S$ where $\beta\geq0$: <right:.3f>",
    ),
    own(
        "focus-signed",
        r"Softmax of the largest sixteenth of the scores, and $\mathrm{sign}(x)\thinspace e^{\lvert x\rvert}$, focus "
        r"as $\gamma$ grows at every $\beta/\gamma$.",
        lambda data: Measured(
            [data[name][-1].max() for name in WITH_GAMMA], where=[TITLES[name] for name in WITH_GAMMA]
        ),
        at_most(FOCUS),
        proof="derived",
        interval_from=COUNTS,
        note=r"largest $S$ at $\gamma=16$ over $-8\leq\beta/\gamma\leq4$",
    ),
    own(
        "focus-relu",
        r"ReLU weights focus as $\beta/\gamma\to-\infty$ at every $\gamma$, and only there.",
        lambda data: _left_and_right(data, "relu"),
        ONLY_LEFT,
        proof="derived",
        interval_from=COUNTS,
        note=r"least $S$ where $\beta\geq0$: <right:.3f>; largest where $\beta/\gamma\leq-8$: <left:.1e>",
    ),
    own(
        "focus-both",
        r"Softplus, sigmoid and $\mathrm{elu}+1$ focus only as $\beta/\gamma\to-\infty$ and $\gamma\to\infty$ "
        r"together. Where $\beta$ is far below $-2\gamma^{2}$ their $S$ is $e^{-\gamma^{2}/2}$.",
        _both,
        ([-np.inf] * 3 + [FOCUS] * 6, [0.01] * 3 + [np.inf] * 6),
        proof="derived",
        interval_from=rf"a gap of 0.01, our tolerance; $S\geq{FOCUS:g}$ elsewhere",
        note=r"largest gap <gap:.1e>; least $S$: <right:.3f> where $\beta\geq0$, <least:.3f> where $\gamma\leq1$",
    ),
    own(
        "focus-cannot",
        rf"With $\tanh$, $\cos^{{2}}$ and the sixth power of cosine similarity the sparsity $S$ stays above {FOCUS:g}.",
        lambda data: Measured(
            [*(_floor(data, name) for name in NEVER), float(data["cosine_floor"])],
            where=[*(TITLES[name] for name in NEVER), "cos(angle)⁶"],
        ),
        at_least(FOCUS),
        proof="measured",
        interval_from=COUNTS,
        note="least $S$ on the map and beyond it; the floor of the sixth power in many dimensions is that of $x^{6}$",
    ),
)
