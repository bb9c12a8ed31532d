"""Attention that forgets: one λ, a λ for every channel, gates that depend on the tokens, and whole spectra of λ."""

import functools
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

import experiments.lib.figure
from experiments.ledger import Measured, at_least, law, near
from experiments.lib import style
from experiments.lib.figure import About
from rc_jax import sparsity

ABOUT = About(
    title="Kinds of decay",
    caption=(
        "The panels show the sparsity S of a row of n weights that decay. The first has one λ; channels 1 − 2⁻⁵ … 1 "
        "− 2⁻¹² in equal parts; λ = 0.9 with a faint even channel, which wins in the end; and independent random "
        "gates. The gates have the mean of S over draws ± 2 standard errors and the annealed form. The second has "
        "a continuum of λ with density p(1 − λ)^(p−1): points are sums of the weights themselves, and lines are their "
        "laws for many tokens. In the third C channels are drawn from p = ½. Medians and quartiles over draws "
        "follow the continuum (black) up to n of about C², and then n^(−1/2)."
    ),
    formula="S² = (Σ w G(λ))²/(n Σ w w′ G(λλ′));  S ~ n^(−1/2) for p > 1, n^(1/2−p) for ½ < p < 1, constant for p < ½",
    topic="sparsity",
    minutes={"smoke": 0.05, "quick": 0.15, "full": 3},
)
POWERS = (0.25, 0.5, 0.75, 1.0, 2.0)
CHANNELS = (4, 16, 64)
EVEN, FAST = 1e-3, 0.9
GATES = {"Beta(1, 1) gates": (1.0, 1.0), "gates σ(5 + 2 ε)": (5.0, 2.0)}
EXPONENT = 0.03  # tolerance of exponents
Data = Mapping[str, np.ndarray]


class Spec(experiments.lib.figure.Spec):
    """Rows of up to 2^`longest` tokens; `draws` of gates on up to 2^`gated` tokens and of channels."""

    longest: int = 20
    gated: int = 12
    draws: int = 256
    channel_draws: int = 64


PRESETS = {
    "smoke": Spec(longest=12, gated=6, draws=16, channel_draws=4),
    "quick": Spec(),
    "full": Spec(longest=24, gated=16, draws=4096, channel_draws=1024),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Closed forms on a grid, rows summed term by term, random gates, spectra and random channels."""
    n, far = 2.0 ** np.arange(1, spec.longest + 1), 2.0 ** np.arange(1, 31)
    slow = 1 - 2.0 ** -np.arange(5, 13)
    cases = (  # each of 8 channels, some of weight 0: one program
        (np.eye(8)[0], np.full(8, FAST)),
        (np.ones(8), slow),
        (np.eye(8)[0] + EVEN * np.eye(8)[1], np.where(np.arange(8) == 1, 1.0, FAST)),
    )
    lags = np.arange(2**spec.longest)
    # Lines: the closed form in G(λ), the geometric sum of n weights. Points: the same row of weights Σ_c w_c λ_c^lag,
    # summed term by term, so that the closed form is checked by none of its own steps.
    lines, points = [], []
    for weights, lam in cases:
        lines.append(_channels(weights, lam, far, spec))
        row = np.zeros(len(lags))
        for w, x in zip(weights, lam, strict=True):
            row += w * x**lags
        points.append(_measured(row, n))
    # The length at which an even and a fast channel together focus most, and S there. Then the spectra of λ: lag k has
    # the weight ∫ λ^k p(1 − λ)^(p−1) dλ = p B(k + 1, p), a beta function.
    where, lowest = sparsity.channel_decay_lowest(EVEN, jnp.ones(1, spec.dtype), jnp.asarray([FAST], spec.dtype))
    spectra = [np.exp(np.log(p) + special.betaln(lags + 1, p)) for p in POWERS]
    return {
        "n": n, "far": far, "lines": np.array(lines), "points": np.array(points), "where": np.asarray(where, float),
        "lowest": np.asarray(lowest, float), "spectra": np.array([_measured(a, n) for a in spectra]),
    } | _gates(spec) | _random_channels(spec)  # fmt: skip


def _channels(weights: np.ndarray, lam: np.ndarray, n: np.ndarray, spec: Spec) -> np.ndarray:
    values = (jnp.asarray(value, spec.dtype) for value in (weights, lam, n))
    return np.asarray(sparsity.channel_decay(*values), float)


def _measured(weights: np.ndarray, n: np.ndarray) -> np.ndarray:
    """S of the first n of a long row of weights, for every n."""
    last = n.astype(int) - 1
    first, second = np.cumsum(weights)[last], np.cumsum(weights**2)[last]
    return first / np.sqrt(n * second)


def _gates(spec: Spec) -> dict[str, np.ndarray]:
    """Mean of S over random gates with its standard error, and the annealed form: (kind, n)."""
    n = 2 ** np.arange(2, spec.gated + 1, 2)
    rng = np.random.default_rng(spec.seed)
    values = {"mean": [], "error": [], "annealed": []}
    for name, (a, b) in GATES.items():
        size = (spec.draws, n[-1])
        nodes, weights = np.polynomial.hermite_e.hermegauss(100)
        if name.startswith("Beta"):
            gates, first, second = rng.beta(a, b, size), a / (a + b), a * (a + 1) / (a + b) / (a + b + 1)
        else:
            gates = special.expit(a + b * rng.normal(size=size))
            first, second = (special.expit(a + b * nodes) ** k @ weights / weights.sum() for k in (1, 2))
        # S of the last tokens of every row of gates, and the annealed form from both moments of a gate.
        logs = jnp.asarray(np.log(gates), spec.dtype)
        s = np.array([np.asarray(sparsity.gated_decay(logs[:, -each:]), float) for each in n])
        values["mean"].append(s.mean(1))
        values["error"].append(s.std(1, ddof=1) / spec.draws**0.5)
        values["annealed"].append(np.asarray(sparsity.gated_decay_annealed(first, second, n), float))
    return {"gated_n": n} | {f"gated_{name}": np.array(value) for name, value in values.items()}


def _random_channels(spec: Spec) -> dict[str, np.ndarray]:
    """S of C equal channels whose 1 − λ has density ½(1 − λ)^(−1/2): (C, draw, n)."""
    n = 2.0 ** np.arange(1, 29)
    closed = []
    for index, count in enumerate(CHANNELS):
        uniform = np.random.default_rng([spec.seed, index]).uniform(size=(spec.channel_draws, 1, count))
        lam = 1 - np.maximum(uniform**2, 1e-7)
        closed.append(_channels(np.ones(count), lam, n, spec))
    return {"random": np.array(closed), "random_n": n}


def plot(data: Data) -> Figure:
    """Kinds; spectra; finitely many channels."""
    drawing, axes = style.figure(columns=3, width=5.2, height=4.8)
    titles = (
        "Decay focuses, unless one channel is even",
        "Slow channels slow the focus: density p(1 − λ)^(p−1)",
        "Finitely many channels end as n^(−1/2)",
    )
    for ax, fill, title, columns in zip(
        axes, (_fill_kinds, _fill_spectra, _fill_finite), titles, (2, 3, 3), strict=True
    ):
        fill(ax, data)
        style.panel(ax, "n, number of tokens", "sparsity S", title, log="xy", legend="below", columns=columns)
    return drawing


def _fill_kinds(ax: Axes, data: Data) -> None:
    names = ("λ = 0.9", "8 channels, λ to 1 − 2⁻¹²", f"λ = 0.9 and {EVEN:g} of λ = 1")
    for index, (name, line, points) in enumerate(zip(names, data["lines"], data["points"], strict=True)):
        look = style.cycle(index)
        ax.plot(data["far"], line, color=look["color"], linewidth=1.3)
        ax.plot(data["n"], points, look["marker"], color=look["color"], label=name, markersize=4)
    ax.plot(data["where"], data["lowest"], "*", color=style.colour("theory"), markersize=10, label="its lowest point")
    for index, name in enumerate(GATES):
        look = style.cycle(index + 3)
        ax.plot(data["gated_n"], data["gated_annealed"][index], color=look["color"], linewidth=1.3)
        ax.errorbar(data["gated_n"], data["gated_mean"][index], 2 * data["gated_error"][index], color=look["color"],
                    marker=look["marker"], linestyle="none", label=name, markersize=4)  # fmt: skip


def _fill_spectra(ax: Axes, data: Data) -> None:
    n = data["n"]
    for index, p in enumerate(POWERS):
        look = style.cycle(index)
        ax.plot(n[n >= 64], sparsity.decay_spectrum(p, n[n >= 64]), color=look["color"], linewidth=1.3)
        ax.plot(n, data["spectra"][index], look["marker"], color=look["color"], label=f"p = {p:g}", markersize=4)


def _fill_finite(ax: Axes, data: Data) -> None:
    for count, values, tint in zip(CHANNELS, data["random"], style.sequence(len(CHANNELS)), strict=True):
        quartiles = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
        style.bands(ax, data["random_n"], *quartiles, color=tint, label=f"C = {count}")
        ax.axvline(count**2, color=tint, linestyle=style.DASHES[2], linewidth=1)
    middle = data["spectra"][POWERS.index(0.5)]
    ax.plot(data["n"], middle, color=style.colour("theory"), label="continuum, p = ½")
    ax.plot([], [], color=style.colour("reference"), linestyle=style.DASHES[2], label="n = C²")


def _local_exponent(values: np.ndarray, doublings: int = 1) -> np.ndarray:
    """By row, the exponent between the last two n, which are so many doublings apart."""
    return np.diff(np.log(values[:, -2:]))[:, 0] / (doublings * np.log(2.0))


def _rates(data: Data) -> Measured:
    """Local exponents at the largest n of two closed forms and of the gates, whose means have standard errors."""
    relative = (data["gated_error"] / data["gated_mean"])[:, -2:]
    gated_error = np.hypot(relative[:, 0], relative[:, 1]) / (2 * np.log(2.0))
    return Measured(
        np.concatenate([_local_exponent(data["points"][:2]), _local_exponent(data["gated_mean"], doublings=2)]),
        standard_error=np.concatenate([[0, 0], gated_error]),
        where=["one λ", "8 channels", *GATES],
    )


def _annealed(data: Data) -> Measured:
    """Relative difference of the mean over gates to the annealed form."""
    return Measured(
        (data["gated_mean"] / data["gated_annealed"] - 1).ravel(),
        standard_error=(data["gated_error"] / data["gated_annealed"]).ravel(),
        where=[f"{kind}, n = {each}" for kind in GATES for each in data["gated_n"]],
    )


def _spectra(data: Data) -> Measured:
    """Local exponents of the sums at the largest n, less those of the law."""
    exponent = _local_exponent(data["spectra"])
    expected = _local_exponent(np.stack([sparsity.decay_spectrum(p, data["n"][-2:]) for p in POWERS]))
    return Measured(
        exponent - expected,
        where=[f"p = {p:g}" for p in POWERS],
        numbers={"exponents": ", ".join(f"{each:.3f}" for each in exponent)},
    )


row = functools.partial(law, place="docs/feature_attention.md")
ROWS = (
    row(
        "decays-rate",
        "The sparsity $S$ of rows with one decay, with channels of several decays below 1, or with independent random "
        "gates of one law falls like $n^{-1/2}$.",
        _rates,
        near(-0.5, EXPONENT),
        proof="derived",
        hypotheses=r"every $\lambda$ below 1; gates of one law, not 1 always",
        interval_from="our tolerance",
        neighbours=["su2023concentrate"],
        note="local exponent at the largest $n$",
    ),
    row(
        "decays-even",
        r"One channel with $\lambda=1$, however faint, makes $S$ rise again and tend to 1 as the row grows.",
        lambda data: Measured(data["points"][2, -1] / data["points"][2].min(), numbers={"tokens": int(data["n"][-1])}),
        at_least(2),
        proof="proved",
        hypotheses="channels of fixed weights",
        interval_from="our threshold",
        neighbours=["su2023concentrate"],
        note="$S$ at $n=<tokens>$ over the lowest $S$; " + rf"weight {EVEN:g} of $\lambda=1$ beside $\lambda={FAST:g}$",
    ),
    row(
        "decays-annealed",
        r"For independent gates uniform on $(0,1)$, and for gates $\sigma(5+2\varepsilon)$ with $\varepsilon$ normal, "
        r"the mean of $S$ is $G(E\thinspace\lambda)/\sqrt{n\thinspace G(E\thinspace\lambda^{2})}$, "
        "$G(x)=(1-x^{n})/(1-x)$, within 5 %.",
        _annealed,
        near(0, 0.05),
        proof="measured",
        after_result=True,
        interval_from="our tolerance; the laws of gates were named when the numbers were known",
        note="not for every law: gates that are rarely 0 and else close to 1 have a mean 11 % lower",
    ),
    row(
        "decays-spectra",
        r"With a density $p(1-\lambda)^{p-1}$ of decays $S$ is constant for $p\lt\frac{1}{2}$ and falls like "
        r"$n^{\frac{1}{2}-p}$ up to $p=1$ and $n^{-\frac{1}{2}}$ beyond.",
        _spectra,
        near(0, EXPONENT),
        proof="derived",
        hypotheses=r"many tokens; logarithms at $p=\frac{1}{2}$ and $p=1$",
        interval_from="our tolerance",
        neighbours=["granger1980"],
        note="local exponent less the law's; exponents <exponents>; sums of decays with such densities fall like a "
        "power, in time series too",
    ),
    row(
        "decays-finite",
        r"A row of finitely many channels, drawn from the density with $p=\frac{1}{2}$, ends as $n^{-1/2}$.",
        lambda data: Measured(
            _local_exponent(np.median(data["random"], axis=1)),
            where=[f"C = {count}" for count in CHANNELS],
            reads=[data["random"]],
        ),
        near(-0.5, EXPONENT),
        proof="derived",
        hypotheses=r"every $\lambda$ below 1",
        interval_from="our tolerance",
        note="local exponent of the median over draws at $n=2^{28}$",
    ),
)
