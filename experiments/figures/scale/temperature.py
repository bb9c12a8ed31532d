"""Softmax from one key to all of them: entropy, largest weight, sparsity and gradient against temperature."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import experiments.lib.figure
from experiments.ledger import Measured, at_least, at_most, near, published
from experiments.lib import style
from experiments.lib.figure import About, Data
from rc_jax import attention, scale, sparsity
from rc_jax.scale import least_entropy

NOTES = "study-notes"
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
LIMIT = 1e-2  # what counts as nothing
SHARP = 0.025  # a temperature at which scores a deviation apart are far apart
CLIP = 10.0  # the threshold τ of QK-clip
JACOBIANS = 4  # rows whose Jacobian is formed
TIED = ("entropy", "largest", "gradient")
NAMES = ("entropy", "largest", "sparsity", "gradient", "variance", "slope")


class Spec(experiments.lib.figure.Spec):
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
    swept = {name: np.asarray(value) for name, value in _sweep(rows, jnp.asarray(1 / temperature)).items()}
    data = {"temperature": temperature, "keys": np.asarray(spec.keys), "rows": np.asarray(spec.rows)}
    for name in NAMES:
        data[name] = np.quantile(swept[name][:-1], (0.05, 0.5, 0.95), axis=0)
        if name in TIED:
            data[f"{name}_tied"] = swept[name][-1]
    jacobians = jax.vmap(jax.jacobian(jax.nn.softmax))(s[:JACOBIANS] / temperature[0])
    data |= _floor(s, swept["entropy"][:-1], 1 / temperature) | _clipped(spec)
    logits = np.asarray(s)[None] / temperature[:, None, None]
    spread = np.ptp(logits, axis=-1)
    data["spread_bound"] = _over_bound(logits, spread)
    return data | {
        "jacobian_size": np.abs(jacobians).max(),
        "mean_gradient": swept["mean"][:-1].mean(0),  # E Σps = E α(1 − Σp²) for normal scores
        "median_spread": np.asarray(np.median(swept["spread"])),
    }


def _floor(s: jax.Array, entropy: np.ndarray, alpha: np.ndarray) -> dict[str, np.ndarray]:
    """Entropy of rows above the least one of logits of their norm σ; the same for one key ahead of equal ones."""
    rows, n = np.asarray(s), s.shape[1]
    ahead = np.eye(1, n)[0]
    exact = jax.vmap(scale.softmax_entropy, (None, 0))(jnp.asarray(ahead), jnp.asarray(alpha))
    least, least_ahead = (
        np.asarray(least_entropy(deviation[..., None] * np.sqrt(n) * alpha, n))
        for deviation in (rows.std(axis=1), ahead.std())
    )
    return {"above_floor": (entropy - least).min(axis=0), "ahead_floor": np.asarray(exact) - least_ahead}


def _over_bound(logits: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """By temperature: the most by which log(np) passes ± δ, over δ or 1, with δ the range of a row's logits."""
    log_weights = np.asarray(jax.nn.log_softmax(jnp.asarray(logits))) + np.log(logits.shape[-1])
    past = np.maximum(log_weights.max(axis=-1) - spread, -log_weights.min(axis=-1) - spread)
    return (past / np.maximum(spread, 1)).max(axis=-1)


def _clipped(spec: Spec) -> dict[str, np.ndarray]:
    """The largest logit of random heads before and after √γ on queries and keys, γ = min(1, τ/S_max), τ = `CLIP`."""
    layer = attention.AttentionSpec(d_model=spec.keys, heads=8)
    key = jax.random.key(spec.seed)
    x = jax.random.normal(jax.random.fold_in(key, 1), (spec.keys, spec.keys))
    params = attention.init(jax.random.fold_in(key, 2), layer, dtype=spec.dtype)
    sizes = jnp.geomspace(1, 30, 8)[:, None, None]  # heads of small and of large logits
    params = params._replace(query=sizes * params.query)
    # S_max as the largest size of a logit, and as the largest logit itself
    sizes = {"largest": jnp.abs, "signed": lambda logits: logits}
    found = {}
    for name, size in sizes.items():
        before = size(attention.scores(params, x, layer)).max(axis=(1, 2))
        root = jnp.sqrt(jnp.minimum(1, CLIP / before))[:, None, None]
        clipped = params._replace(query=root * params.query, key=root * params.key)
        after = attention.scores(clipped, x, layer)
        found |= {f"{name}_logit": before, f"{name}_clipped": size(after).max(axis=(1, 2))}
        found |= {f"{name}_size": jnp.abs(after).max()} if name == "signed" else {}
    return {name: np.asarray(value) for name, value in found.items()}


@jax.jit
def _sweep(rows: jax.Array, alpha: jax.Array) -> dict[str, jax.Array]:
    """Each quantity for each row and α; slopes in α by automatic differentiation."""

    def one(s: jax.Array, a: jax.Array) -> dict[str, jax.Array]:
        p = jax.nn.softmax(a * s)
        variance = p @ (s - p @ s) ** 2
        return {
            "entropy": scale.softmax_entropy(s, a), "largest": p.max(), "sparsity": sparsity.sparsity(p),
            "gradient": scale.gradient_norm(s, a), "variance": variance, "spread": jnp.var(s),
            "slope": jax.grad(lambda a: scale.softmax_entropy(s, a))(a), "mean": p @ s - s.mean(),
        }  # fmt: skip

    return jax.lax.map(lambda s: jax.vmap(one, (None, 0))(s, alpha), rows, batch_size=16)


def plot(data: Data) -> Figure:
    """Entropy; largest weight and sparsity; gradient; slope of the entropy."""
    drawing, (entropy, weight, gradient, slope) = style.figure(columns=2, rows=2, width=5.6, height=3.9)
    # each panel has rows and the tied row first, then its law at high temperature
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


def _cold_weight(data: Data) -> Measured:
    """The median row's largest weight when cold."""
    t = data["temperature"]
    return Measured(
        np.median(data["largest"][1, t <= 1e-3]), reads=[data["largest"]], numbers=_rows(data) | {"coldest": t[0]}
    )


def _changes(data: Data) -> Measured:
    """Change of the median row's largest weight and of all others from one temperature to the next, while they move."""
    t = data["temperature"]
    warm = (t >= 0.1) & (t <= 10)
    change = np.diff(data["largest"][1, warm])
    steps = [f"T = {low:.2g} → {high:.2g}" for low, high in itertools.pairwise(t[warm])]
    return Measured(
        np.append(change, -change),
        where=[f"{values}, {step}" for values in ("large values", "low values") for step in steps],
        numbers=_rows(data),
    )


def _extremes(data: Data) -> Measured:
    """Weights and slopes of the median row where scores are far apart, and the entries of the coldest Jacobian."""
    t, gradient = data["temperature"], data["gradient"]
    sharp = int(np.argmin(np.abs(np.log(t / SHARP))))
    top = data["largest"][1, sharp]
    return Measured(
        [top * (1 - top), 1 - top, data["jacobian_size"]],
        where=[
            "far above the others: p(1 − p)", "far below the largest: p", f"every entry of the Jacobian, T = {t[0]:g}",
        ],
        reads=[t, gradient],
        numbers=_rows(data) | {"sharp": t[sharp], "hottest": t[-1], "let_through": gradient[1, -1] * t[-1]},
    )  # fmt: skip


def _above_floor(data: Data) -> Measured:
    """Entropy less the bound, by temperature: of rows where it is below, and of the row that attains it."""
    return Measured(
        np.concatenate([np.minimum(data["above_floor"], 0), data["ahead_floor"]]),
        where=[f"{what}, {at}" for what in ("rows", "one key ahead") for at in _temperatures(data)],
        numbers=_rows(data),
    )


def _after_clip(data: Data) -> Measured:
    """The largest logit of every head after the clip, over the lesser of S_max and τ, by what S_max is."""
    names = ("largest", "signed")
    before, after = (np.concatenate([data[f"{name}_{part}"] for name in names]) for part in ("logit", "clipped"))
    ratio = after / np.minimum(before, CLIP)
    where = [f"S_max = {each:.3g}" for each in before]
    numbers = {"off": np.abs(ratio - 1).max(), "size": data["signed_size"]}
    return Measured(ratio, where=where, reads=[before, after], numbers=numbers)


def _temperatures(data: Data) -> list[str]:
    """Labels of all temperatures."""
    return [f"T = {each:.2g}" for each in data["temperature"]]


def _rows(data: Data) -> dict[str, float]:
    """How many rows of how many scores."""
    return {"rows": int(data["rows"]), "keys": int(data["keys"])}


SETTING = r"<rows> rows of <keys> normal scores, $p=\mathrm{softmax}(s/T)$"
ROWS = (
    published(
        "temperature-cold",
        "With large scores nearly all weight goes to the top one.",
        _cold_weight,
        at_least(1 - LIMIT),
        formula=True,
        source=NOTES,
        place="section on softmax",
        hypotheses=f"{SETTING}, $T$ from <coldest:g> to $10^{{-3}}$; one value is the largest",
        interval_from="our tolerance: all but a hundredth",
        note="measured: largest weight of the median row; equal largest values share it",
    ),
    published(
        "temperature-larger",
        "The larger the temperature $T$, the more weight softmax gives to large values; with a larger $T$ it gives low "
        "values more weight.",
        _changes,
        at_least(0),
        formula=True,
        needs="parts",
        source=NOTES,
        place="section on softmax, both sentences on T",
        hypotheses=f"{SETTING}, $T$ from 0.1 to 10",
        after_result=True,
        interval_from="the sign of the change; the second sentence was added when the result for the first was known",
        note="the two contradict each other, and the second is so; measured: change of the median row's largest "
        "weight as $T$ rises, and of the weight of all others",
    ),
    published(
        "temperature-extremes",
        "A number that is far too large or too small for softmax may bring a result to 0 and its gradient with it.",
        _extremes,
        at_most(LIMIT),
        formula=True,
        source=NOTES,
        place="section on the division by √d_k",
        hypotheses=f"{SETTING}, $T=<sharp:.2g>$, of which the others have $1-p$ of the largest together",
        interval_from="our tolerance: a hundredth",
        note="measured in the median row; all scores divided by a high $T$ leave the weights even and the gradient "
        r"large: $1-\sum p^{2}=<let_through:.2f>$ at $T=<hottest:g>$",
    ),
    published(
        "temperature-entropy-floor",
        "As logits grow in spectral norm, entropy may fall, but not below a floor that shrinks exponentially and is "
        "attained.",
        _above_floor,
        near(0, 1e-12),
        formula=True,
        source="zhai2023",
        place="abstract; the theorem's bound, as others restate it",
        hypotheses=rf"{SETTING}; the bound $\log(1+(n-1)\beta)+\sigma\sqrt{{n(n-1)}}\thinspace\beta/(1+(n-1)\beta)$, "
        r"$\beta=e^{-\sigma\sqrt{n/(n-1)}}$, with $\sigma$ the norm of the row's own logits, which is not more than "
        "the authors'",
        interval_from="rounding of float64",
        note="measured: entropy less the bound, least over rows and 0 where above it, and of the row that attains it",
    ),
    published(
        "temperature-disperse",
        r"Weights of $n$ logits whose range is $\delta$ lie between $e^{-\delta}/n$ and $e^{\delta}/n$, so that they "
        "disperse as $n$ grows.",
        lambda data: Measured(data["spread_bound"], where=_temperatures(data), numbers=_rows(data)),
        at_most(1e-12),
        formula=True,
        source="velickovic2025-lemma",
        place="lemma 2.1",
        hypotheses=SETTING,
        interval_from="the inequality is exact; rounding of float64",
        note="near it: Mudarisov et al. 2025, by whom a selection of many tokens tends to uniform weights; measured: "
        r"the most by which $\log(np)$ passes $\pm\thinspace\delta$, over $\delta$, of all rows",
    ),
    published(
        "temperature-clip",
        r"Multiplying $W_Q$ and $W_K$ of a head by $\sqrt{\gamma}$, $\gamma=\min(1,\tau/S_{\max})$, brings its "
        r"largest logit down to $\tau$ and leaves other heads as they are.",
        _after_clip,
        near(1, 1e-12),
        formula=True,
        source="su2025clip",
        place="section on the clip per head",
        hypotheses=rf"heads without biases, $\tau={CLIP:g}$; $S_{{\max}}$ is the largest size of a "
        "logit, or the largest logit: translations differ",
        interval_from="the formula is exact; rounding of float64",
        shown="1, to <off:.0e>",
        note=r"measured: the largest logit after, over the lesser of $S_{\max}$ and $\tau$, and its largest distance "
        "from 1; where $S_{\\max}$ is the largest logit negative ones may stay larger in size, here up to <size:.3g>",
    ),
)
