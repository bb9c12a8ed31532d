"""Skip connections with branches of strength a: how alike tokens become, measured and in closed form."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.figures._samples import draw
from experiments.ledger import Measured, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import attention, collapse, network

ABOUT = figure.About(
    title="Strength of the residual branch",
    caption=(
        "X ← X + a·SA(X) at initialisation: the mean correlation ρ of all pairs of tokens, a token with itself "
        "included. Lines: closed form for uniform attention and wide layers. Crosses: uniform attention, medians. "
        "Bands and dots: softmax attention with Gaussian W_QK, 5–95 % of initialisations and medians. A constant "
        "strength drives tokens together, 1/√L stops below 1 whatever the depth, 1/L changes nothing in the end."
    ),
    formula="logit ρ_L = logit ρ₀ + L log(1 + a²);   a = 1/√L, L → ∞:  ρ = eρ₀/(eρ₀ + 1 − ρ₀)",
    topic="later",
    minutes={"smoke": 0.2, "quick": 0.5, "full": 30.0},
)

LEVELS = (0.05, 0.5, 0.95)
NAMES = ("2", "1", "1/√L", "1/L")
COLOURS = {"2": "random", "1": "mlp", "1/√L": "measured", "1/L": "skip"}
MARKERS = {"2": "D", "1": "s", "1/√L": "o", "1/L": "^"}
KINDS = ("softmax", "uniform")
UNIFORM = 1e-30  # of the logits: attention is uniform to rounding

# Fixed before anything was measured. In a layer d wide a mean of squares is off by about √(2/d), an eighth for d = 128;
# of ρ that moves at most a quarter. Collapsed is 0.99; a strength of 1/L adds (1 + 1/L²)^L − 1 ≈ 1/L to k.
UNIFORM_TOLERANCE, SOFTMAX_TOLERANCE, COLLAPSED, UNCHANGED = 0.03, 0.05, 0.99, 0.02


class Spec(figure.Spec):
    """Shape, correlation of two different tokens at first, and the depths at which 1/√L and 1/L are read off."""

    d_model: int = 128
    heads: int = 4
    tokens: int = 16
    correlation: float = 0.2
    depths: tuple[int, ...] = (2, 4, 8, 16, 32)
    count: int = 48

    @property
    def strengths(self) -> list[float]:
        """2 and 1, then 1/√L and 1/L for each depth."""
        return [2.0, 1.0, *(depth**-0.5 for depth in self.depths), *(1 / depth for depth in self.depths)]


PRESETS = {
    "smoke": Spec(d_model=16, heads=2, tokens=4, depths=(2, 8), count=8),
    "quick": Spec(),
    "full": Spec(d_model=256, heads=4, tokens=32, depths=(2, 4, 8, 16, 32, 64), count=2048),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By kind of attention, strength and layer: quantiles of ρ and of its log odds, mean error of the closed form."""
    key = jax.random.fold_in(jax.random.key(spec.seed), 0)
    stats = draw(functools.partial(_network, spec=spec), key, spec.count, progress=True)
    quantiles, unknown = stats.quantile(LEVELS), stats.left_out["logit"]
    read = [(2 + kind * len(spec.depths) + i, depth) for kind in (0, 1) for i, depth in enumerate(spec.depths)]
    weak = sum(unknown[:, run, : depth + 1].sum() for run, depth in read)  # a network counts up to its own L
    return {
        "logit": quantiles["logit"], "rho": quantiles["rho"], "start": stats.mean["start"],
        "error_mean": stats.mean["error"], "error_standard_error": stats.standard_error["error"],
        "rho_mean": stats.mean["rho"], "rho_standard_error": stats.standard_error["rho"],
        "tokens": np.asarray(spec.tokens), "depths": np.asarray(spec.depths), "strengths": np.asarray(spec.strengths),
        "unknown_weak": np.asarray(weak),
    }  # fmt: skip


def _network(key: jax.Array, spec: Spec) -> dict[str, jax.Array]:
    """One initialisation at every strength, with softmax and with uniform attention: (kind, strength, layer)."""
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads)
    stack = network.StackSpec(attention=layer, depth=max(spec.depths), skip=True)
    normals = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens + 1, spec.d_model), spec.dtype)
    share = jnp.asarray(spec.correlation, spec.dtype)
    x = jnp.sqrt(share) * normals[:1] + jnp.sqrt(1 - share) * normals[1:]
    params = network.init(jax.random.fold_in(key, 1), stack, dtype=spec.dtype)

    def correlation(at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """By layer, the log odds of ρ, exact where 1 − ρ is below rounding, and ρ."""
        layers = network.scale_branches(params, at[0])
        states = network.hidden_states(layers, x, stack, scale=at[1])
        sizes = jax.vmap(collapse.frobenius)(states)
        rest = 2 * (collapse.log_residuals(layers, x, stack, scale=at[1]) - jnp.log(sizes))
        plain = jax.vmap(lambda state: collapse.frobenius(collapse.residual(state)))(states) / sizes
        return jnp.log(-jnp.expm1(rest)) - rest, 1 - jnp.square(plain)

    # Every strength with softmax and with uniform attention, then the closed form from the same start.
    strengths = jnp.asarray(spec.strengths, spec.dtype)
    scales = jnp.asarray([layer.head_width**-0.5, UNIFORM], spec.dtype)
    pairs = (jnp.tile(strengths, len(KINDS)), jnp.repeat(scales, len(spec.strengths)))
    shape = (len(KINDS), len(spec.strengths), stack.depth + 1)
    logit, rho = (each.reshape(shape) for each in jax.lax.map(correlation, pairs))
    layers = jnp.arange(stack.depth + 1).astype(spec.dtype)
    closed = collapse.uniform_correlation(rho[:, :, :1], strengths[None, :, None], layers[None, None])
    return {"logit": logit, "rho": rho, "error": rho - closed, "start": rho[0, 0, 0]}


def _runs(data: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Index of each strength at the largest depth."""
    count = len(data["depths"])
    return {"2": 0, "1": 1, "1/√L": 1 + count, "1/L": 1 + 2 * count}


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """ρ by layer in the deepest network; the same as log odds; ρ at the end against depth."""
    drawing, (left, middle, right) = style.figure(columns=3, width=5.0, height=4.4)
    depths, start, runs, count = data["depths"], float(data["start"]), _runs(data), len(data["depths"])
    layers, fine = np.arange(depths[-1] + 1), np.geomspace(depths[0], depths[-1], 100)
    crosses: dict[str, Any] = {"color": style.colour("theory"), "linestyle": "none", "marker": "x"}
    at_depth = {
        "1": (np.full(count, 1), fine**0), "1/√L": (np.arange(2, 2 + count), fine**-0.5),
        "1/L": (np.arange(2 + count, 2 + 2 * count), 1 / fine),
    }  # fmt: skip
    # Bands are softmax, crosses uniform attention, lines the closed form.
    for name, run in runs.items():
        look: dict[str, Any] = {"linestyle": "none", "marker": MARKERS[name], "label": f"a = {name}"}
        color = style.colour(COLOURS[name])
        closed = np.asarray(collapse.uniform_correlation(start, float(data["strengths"][run]), layers.astype(float)))
        line = np.log(start / (1 - start)) + layers * np.log1p(data["strengths"][run] ** 2)
        for ax, quantity, values in ((left, "rho", closed), (middle, "logit", line)):
            low, median, high = data[quantity][:, 0, run]
            ax.fill_between(layers, low, high, color=color, alpha=0.2, linewidth=0)
            ax.plot(layers, median, color=color, **look)
            ax.plot(layers, data[quantity][1, 1, run], markersize=4, **crosses)
            ax.plot(layers, values, color=color)
        if name in at_depth:
            rows, strength = at_depth[name]
            low, median, high = data["rho"][:, 0, rows, depths]
            right.errorbar(depths, median, yerr=[median - low, high - median], color=color, capsize=2, **look)
            right.plot(fine, np.asarray(collapse.uniform_correlation(start, strength, fine)), color=color)
            right.plot(depths, data["rho"][1, 1, rows, depths], **crosses)
    limit = float(collapse.uniform_correlation_limit(start))
    style.reference(right, y=limit, text="limit of a = 1/√L")
    for ax in (left, right):
        ax.set_ylim(0, 1.05)
    for ax in (left, middle):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.panel(left, "layer", "correlation ρ", f"By layer, L = {depths[-1]}")
    style.panel(middle, "layer", "log ρ/(1 − ρ) (nats)", "… its log odds: a straight line", legend="upper left")
    style.panel(right, "depth L", "correlation ρ after L layers", "At the end, by depth", log="x", base=2,
                legend="lower left", columns=3)  # fmt: skip
    return drawing


def _with_root(data: Mapping[str, np.ndarray]) -> Measured:
    """ρ after L layers of softmax attention with a = 1/√L, by L."""
    depths = data["depths"]
    root = np.arange(2, 2 + len(depths))
    return Measured(
        data["rho_mean"][0, root, depths],
        standard_error=data["rho_standard_error"][0, root, depths],
        where=[f"L = {depth}" for depth in depths],
        left_out=data["unknown_weak"],
        reads=[data["start"]],
        numbers={"tokens": int(data["tokens"]), "start": float(data["start"])},
    )


def _worst_error(data: Mapping[str, np.ndarray]) -> Measured:
    """Mean error of the closed form under uniform attention, the largest over layers, by strength."""
    rows = list(_runs(data).values())
    return Measured(
        np.abs(data["error_mean"][1, rows]).max(axis=1),
        standard_error=data["error_standard_error"][1, rows].max(axis=1),
        where=[f"a = {name}" for name in NAMES],
        left_out=data["unknown_weak"],
        numbers={"tokens": int(data["tokens"])},
    )


def _limit(data: Mapping[str, np.ndarray]) -> float:
    """The correlation of k = e."""
    start = float(data["start"])
    return np.e * start / (np.e * start + 1 - start)


def _at_the_end(data: Mapping[str, np.ndarray], name: str, *, less: np.ndarray | float) -> Measured:
    """ρ after the deepest network with branches of this strength, less another ρ, by kind of attention."""
    run = _runs(data)[name]
    return Measured(
        data["rho_mean"][:, run, -1] - less,
        standard_error=data["rho_standard_error"][:, run, -1],
        where=[f"{kind}, L = {data['depths'][-1]}" for kind in KINDS],
        left_out=data["unknown_weak"],
        numbers={"tokens": int(data["tokens"]), "limit": _limit(data)},
    )


SETTING = "<tokens> tokens, Gaussian weights, no LayerNorm, no MLP"
closed_form = functools.partial(
    law,
    proof="derived",
    place="docs/skip_norm_mlp.md",
    interval_from="our tolerance",
    neighbours=["noci2022"],
)
ROWS = (
    published(
        "strength-root",
        r"Residual branches scaled by $1/\sqrt{L}$ keep tokens from collapsing.",
        _with_root,
        at_most(COLLAPSED),
        formula=True,
        source="noci2022-theorem",
        place="theorem on residual scaling, as others restate it",
        hypotheses=f"at initialisation; softmax attention; here {SETTING}",
        interval_from="our tolerance: collapsed is 0.99",
        note=r"correlation $\rho$ of all pairs at the end; at the start <start:.3f>",
    ),
    closed_form(
        "strength-uniform",
        r"Under uniform attention the correlation is $\rho_L=k\rho_0/(k\rho_0+1-\rho_0)$, $k=(1+a^{2})^{L}$.",
        _worst_error,
        at_most(UNIFORM_TOLERANCE),
        hypotheses=f"wide layers; {SETTING}",
        note="largest mean error over layers; known: Noci et al. 2022 derive the correlation in this setting, of which "
        "only the abstract was read",
    ),
    closed_form(
        "strength-limit",
        r"With $a=1/\sqrt{L}$ the correlation of deep networks is that of $k=e$.",
        lambda data: _at_the_end(data, "1/√L", less=_limit(data)),
        near(0, SOFTMAX_TOLERANCE),
        hypotheses=f"uniform attention, and softmax attention at initialisation; {SETTING}",
        note="measured less predicted, <limit:.4f>",
    ),
    closed_form(
        "strength-inverse",
        "With $a=1/L$ the correlation of deep networks stays what it was.",
        lambda data: _at_the_end(data, "1/L", less=data["rho_mean"][:, _runs(data)["1/L"], 0]),
        near(0, UNCHANGED),
        hypotheses=f"uniform attention, and softmax attention at initialisation; {SETTING}",
        note=r"change of $\rho$",
    ),
)
