"""Softmax from one key to all of them: entropy, largest weight, sparsity and gradient against temperature."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import experiments.figure
from experiments import style
from experiments.figure import About
from experiments.figures._peaks import peaks
from experiments.ledger import Claim, on_range, within
from rc_jax import scale, sparsity

TEXTBOOK = "statistical mechanics of the canonical ensemble, energies −s"
OWN = "this package's own result"
ZHAI = "Zhai et al. 2023, lower bound on attention's entropy (second-hand; σ is the row's own)"
ABOUT = About(
    title="Temperature",
    caption=(
        "Rows of normal scores (median and 5–95 % of rows) and one row whose four largest scores are equal, p = "
        "softmax(s/T). Cold rows share their weight evenly among the largest scores, warm ones among all, and 1 − S is "
        "then half the variance of the logits. The typical gradient has a maximum, its mean over rows has none. "
        "Last panel: the entropy's slope by automatic differentiation (dots) and α Var_p(s) (line)."
    ),
    formula="T = 1/α;  dE_p[s]/dα = Var_p(s);  dH/dα = −α Var_p(s);  d log Σp²/dα = 2(E_{p(2α)}[s] − E_{p(α)}[s])",
    topic="scale",
    minutes={"smoke": 0.03, "quick": 0.05, "full": 0.5},
)
TIES = 4
COLD, WARM = 1e-3, 1e-2  # relative gaps that count as having reached a limit
NAMES = ("entropy", "largest", "sparsity", "gradient", "variance", "slope")
Data = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Spec(experiments.figure.Spec):
    """Rows of `keys` scores at `points` temperatures, evenly apart in their logarithm."""

    dtype: str = "float64"
    keys: int = 64
    rows: int = 1000
    points: int = 81


PRESETS = {"smoke": Spec(rows=64, points=25), "quick": Spec(), "full": Spec(keys=256, rows=20_000, points=161)}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Quantiles over rows, and the tied row, of everything against temperature; the laws at both ends, row by row."""
    s = jax.random.normal(jax.random.key(spec.seed), (spec.rows, spec.keys))
    tied = s[0].at[jax.lax.top_k(s[0], TIES)[1]].set(s[0].max())
    temperature = np.geomspace(1e-4, 1e4, spec.points)
    rows = jnp.concatenate([s, tied[None]])
    found = {name: np.asarray(value) for name, value in _sweep(rows, jnp.asarray(1 / temperature)).items()}
    data = {"temperature": temperature, "keys": np.asarray(spec.keys), "rows": np.asarray(spec.rows)}
    for name in NAMES:
        data[name] = np.quantile(found[name][:-1], (0.05, 0.5, 0.95), axis=0)
        data[f"{name}_tied"] = found[name][-1]
    data |= _floor(s, found["entropy"][:-1], 1 / temperature)
    return data | {
        "mean_gradient": found["mean"][:-1].mean(0),  # E Σps = E α(1 − Σp²) for normal scores
        "warm_entropy": _gap(np.log(spec.keys) - found["entropy"], found["spread"] / (2 * temperature**2)),
        "warm_sparsity": _gap(1 - found["sparsity"], found["spread"] / (2 * temperature**2)),
        "warm_gradient": _gap(found["gradient"], (1 - 1 / spec.keys) / temperature),
        "warm_variance": _gap(found["variance"], found["spread"]),
        "identity": np.abs(found["slope"] + found["variance"] / temperature).max(0),
        "force": np.abs(found["force"] - found["variance"]).max(0),
        "participation": np.abs(found["participation"]).max(0),
        "median_spread": np.asarray(np.median(found["spread"])),
    }


def _gap(value: np.ndarray, law: np.ndarray) -> np.ndarray:
    """Largest relative gap over rows."""
    return np.abs(value / law - 1).max(0)


def _floor(s: jax.Array, entropy: np.ndarray, alpha: np.ndarray) -> dict[str, np.ndarray]:
    """How far rows are above the least entropy of logits of their norm σ, and one key ahead of equal ones from it."""
    rows, n = np.asarray(s), s.shape[1]
    ahead = np.eye(1, n)[0]
    exact = jax.vmap(scale.softmax_entropy, (None, 0))(jnp.asarray(ahead), jnp.asarray(alpha))
    return {
        "above_floor": (entropy - _least(rows.std(axis=1)[:, None] * np.sqrt(n) * alpha, n)).min(axis=0),
        "ahead_floor": np.asarray(exact) - _least(ahead.std() * np.sqrt(n) * alpha, n),
    }


def _least(sigma: np.ndarray, n: int) -> np.ndarray:
    """log(1 + (n − 1)β) + σ√(n(n − 1)) β/(1 + (n − 1)β), β = e^(−σ√(n/(n − 1)))."""
    lead = sigma * np.sqrt(n / (n - 1))
    others = (n - 1) * np.exp(-lead)
    return np.log1p(others) + lead * others / (1 + others)


@jax.jit
def _sweep(rows: jax.Array, alpha: jax.Array) -> dict[str, jax.Array]:
    """Each quantity for each row and α; slopes in α by automatic differentiation."""

    def one(s: jax.Array, a: jax.Array) -> dict[str, jax.Array]:
        def mean(a: jax.Array) -> jax.Array:
            return jax.nn.softmax(a * s) @ s

        p = jax.nn.softmax(a * s)
        variance = p @ (s - p @ s) ** 2
        participation = jax.grad(lambda a: -scale.renyi_entropy(s, a))(a) - 2 * (mean(2 * a) - mean(a))
        return {
            "entropy": scale.softmax_entropy(s, a), "largest": p.max(), "sparsity": sparsity.sparsity(p),
            "gradient": scale.gradient_norm(s, a), "variance": variance, "spread": jnp.var(s),
            "slope": jax.grad(lambda a: scale.softmax_entropy(s, a))(a), "force": jax.grad(mean)(a),
            "participation": participation, "mean": mean(a) - s.mean(),
        }  # fmt: skip

    return jax.lax.map(lambda s: jax.vmap(one, (None, 0))(s, alpha), rows, batch_size=16)


def plot(data: Data) -> Figure:
    """Entropy; largest weight and sparsity; gradient; slope of the entropy."""
    drawing, (entropy, weight, gradient, slope) = style.figure(columns=2, rows=2, width=5.6, height=3.9)
    t, n = data["temperature"], float(data["keys"])
    _both(entropy, data, "entropy")
    entropy.plot(t, np.clip(np.log(n) - data["median_spread"] / (2 * t**2), 0, None), color=style.colour("theory"),
                 linestyle=style.DASHES[1], label="log n − Var(s)/2T²")  # fmt: skip
    style.reference(entropy, y=np.log(TIES), text=f"log {TIES}")
    style.labels(entropy, "T, temperature", "H(p), entropy (nats)", f"Entropy of {n:g} keys")
    _both(weight, data, "largest")
    low, middle, high = 1 - data["sparsity"]
    style.bands(weight, t, low, middle, high, meaning="corrected", label="1 − S, sparsity")
    weight.plot(t, data["median_spread"] / (2 * t**2), color=style.colour("theory"), linestyle=style.DASHES[1],
                label="Var(s)/2T²")  # fmt: skip
    weight.set_ylim(1e-6, 2)
    style.labels(weight, "T, temperature", "largest weight; 1 − S", "Largest weight and sparsity")
    _both(gradient, data, "gradient")
    gradient.plot(
        t, data["mean_gradient"], color=style.colour("corrected"), linestyle=style.DASHES[3], label="mean, E Σps"
    )
    gradient.plot(t, (1 - 1 / n) / t, color=style.colour("theory"), linestyle=style.DASHES[1], label="(1 − 1/n)/T")
    gradient.set_ylim(1e-5, 1e2)
    style.labels(gradient, "T, temperature", "(1 − Σp²)/T", "Gradient let through")
    low, middle, high = data["variance"] / t
    style.bands(slope, t, low, middle, high, meaning="theory", label="α Var_p(s)", alpha=0.15)
    slope.plot(t[::4], -data["slope"][1, ::4], "o", color=style.colour("measured"), markersize=4, label="−dH/dα")
    slope.set_ylim(1e-5, 1e2)
    style.labels(slope, "T, temperature", "−dH/dα (nats × score)", "Entropy falls by the variance")
    for ax in (entropy, weight, gradient, slope):
        ax.set_xscale("log")
        style.legend(ax, "below", columns=2)
    for ax in (weight, gradient, slope):
        ax.set_yscale("log")
    return drawing


def _both(ax: Axes, data: Data, name: str) -> None:
    labels = ("normal scores", f"{TIES} equal largest scores")
    style.bands(ax, data["temperature"], *data[name], label=labels[0])
    ax.plot(data["temperature"], data[f"{name}_tied"], color=style.colour("published"), label=labels[1],
            linestyle=style.DASHES[4])  # fmt: skip


def claims(data: Data) -> list[Claim]:
    """Both limits, the identities, and the shape of the gradient."""
    t, n = data["temperature"], float(data["keys"])
    alpha = [f"α = {1 / each:.2g}" for each in t]
    cold = [data["entropy_tied"][0] / np.log(TIES), TIES * data["largest_tied"][0],
            data["sparsity_tied"][0] * (n / TIES) ** 0.5]  # fmt: skip
    warm = np.stack([data[f"warm_{name}"][-1] for name in ("entropy", "sparsity", "gradient", "variance")])
    best = peaks(t, np.log(np.maximum(data["gradient"][1], np.finfo(float).tiny)))
    return [
        on_range("temperature-cold", f"T → 0: even weights on the {TIES} equal largest scores (H/log {TIES}, {TIES} "
                 f"max p, S √(n/{TIES}))", TEXTBOOK, "1", cold, np.abs(np.array(cold) - 1) < COLD, ["H", "p", "S"]),
        on_range("temperature-warm", "T → ∞: log n − H and 1 − S are Var(s)/2T², the gradient (1 − 1/n)/T, Var_p(s) "
                 "the plain variance: largest relative gap over rows", TEXTBOOK, "0", warm, warm < WARM,
                 ["H", "S", "gradient", "Var_p(s)"], note=f"T = {t[-1]:g}"),
        on_range("temperature-mean", "dE_p[s]/dα = Var_p(s): largest gap over rows", TEXTBOOK, "0", data["force"],
                 data["force"] < 1e-9, alpha),
        on_range("temperature-entropy", "dH/dα = −α Var_p(s): largest gap over rows", TEXTBOOK, "0", data["identity"],
                 data["identity"] < 1e-9, alpha),
        on_range("temperature-participation", "d log Σp²/dα = 2(E_{p(2α)}[s] − E_{p(α)}[s]): largest gap over rows",
                 OWN, "0", data["participation"], data["participation"] < 1e-9, alpha),
        on_range("temperature-entropy-floor", "no row of logits of norm σ has less entropy than log(1 + (n − 1)β) + "
                 "σ√(n(n − 1)) β/(1 + (n − 1)β), β = e^(−σ√(n/(n − 1))): least of H − that over rows", ZHAI, "≥ 0",
                 data["above_floor"], data["above_floor"] > -1e-12, alpha),
        within("temperature-entropy-attained", "one key ahead of equal ones has just that entropy: largest gap", ZHAI,
               "attained", np.abs(data["ahead_floor"]).max(), 0, 1e-12),
        within("temperature-typical", "the median row's gradient is largest at T = 1/√(2 log n), within a factor of 2",
               OWN, "1/√(2 log n)", best * np.sqrt(2 * np.log(n)), 0.5, 2),
    ]  # fmt: skip
