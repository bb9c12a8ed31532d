"""Sparsity against the spread of the logits at fixed means, as its source draws it; decay's bound; noisy features."""

import functools
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.ledger import Measured, at_least, at_most, published
from experiments.lib import figure, style
from rc_jax import sparsity

ABOUT = figure.About(
    title="Sparsity at fixed means, as Su draws it",
    caption=(
        "S of a row whose logits are N(β, γ²), against γ, one line for each β. Squared ReLU: below β = 0 the line "
        "comes from 0 and rises, above it comes from 1 and falls; all tend to 1/√6 as γ grows. Without an activation: "
        "lines of β and −β are the same, and none is below √(2/π). Below: S of decaying weights under its bound; how "
        "near each other most entries of a non-negative feature are as its signal-to-noise ratio falls."
    ),
    formula="S = E|f(β + γε)|/√E f(β + γε)²;   S_decay < √((1 + λ)/(n(1 − λ)(1 + λⁿ)))",
    topic="sparsity",
    minutes={"smoke": 0.05, "quick": 0.05, "full": 0.1},
)
MEANS = np.array([-4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0])  # β
NOISES = np.array([1.0, 3.0, 10.0, 30.0, 100.0])  # σ̃/μ̃ of a feature
DECAYS, COUNTS = np.array([0.5, 0.9, 0.99]), np.array([4, 16, 64, 256, 1024])
DRAWN, BIAS = 10.0, 4.0  # largest γ of the picture; what a bias takes off β
CLOSE = 0.1  # of a standard deviation
FLOOR = float(np.sqrt(2 / np.pi))
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Spreads from `narrow` to `wide`, and draws of a noisy feature."""

    dtype: str = "float64"
    narrow: float = 0.05
    wide: float = 50.0
    points: int = 121
    draws: int = 2**18


PRESETS = {
    "smoke": Spec(points=31, draws=2**14),
    "quick": Spec(),
    "full": Spec(points=401, draws=2**22),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """S by mean and spread for three kernels; decaying rows and their bound; shares of entries near the median."""
    gamma = np.geomspace(spec.narrow, spec.wide, spec.points)
    both = np.broadcast_arrays(MEANS[:, None], gamma[None])
    n, lam = COUNTS[None].astype(float), DECAYS[:, None]
    rows = np.array([[_sparsity(rate ** np.arange(count)) for count in COUNTS] for rate in DECAYS])
    rng = np.random.default_rng(spec.seed)
    return {
        "gamma": gamma,
        "relu": np.asarray(sparsity.relu_squared(*both)),
        "identity": np.asarray(sparsity.identity(*both)),
        "exp": np.stack([_exponential(beta, gamma) for beta in MEANS]),
        "decay": rows,
        "decay_bound": np.sqrt((1 + lam) / (n * (1 - lam) * (1 + lam**n))),
        "near_median": np.array([_near_median(rng, noise, spec.draws) for noise in NOISES]),
    }


def _exponential(beta: float, gamma: np.ndarray) -> np.ndarray:
    """S of e^x by its two moments, x normal with mean β and deviations γ: sums over a grid, in logarithms."""
    grid = np.arange(-2 * gamma.max() - 10, 2 * gamma.max() + 10, 0.05)
    first, second = (
        np.logaddexp.reduce(power * (beta + gamma[:, None] * grid) - grid**2 / 2, axis=1)
        - np.logaddexp.reduce(-(grid**2) / 2)
        for power in (1, 2)
    )
    return np.exp(first - second / 2)


def _sparsity(weights: np.ndarray) -> float:
    """E|a|/√E a² of one row, by its definition."""
    return float(np.abs(weights).mean() / np.sqrt(np.mean(weights**2)))


def _near_median(rng: np.random.Generator, noise: float, draws: int) -> float:
    """The share of gamma features, deviation over mean `noise`, within a tenth of a deviation of their median."""
    feature = rng.gamma(noise**-2.0, noise**2, size=draws)
    return float(np.mean(np.abs(feature - np.median(feature)) <= CLOSE * noise))


def plot(data: Data) -> Drawing:
    """Squared ReLU and identity against γ; decay and noisy features."""
    drawing, (relu, identity, decay, noisy) = style.figure(columns=2, rows=2, width=5.4, height=4)
    colours = style.sequence(MEANS.size)
    for beta, color, row in zip(MEANS, colours, data["relu"], strict=True):
        relu.plot(data["gamma"], row, color=color, label=f"β = {beta:g}")
    style.reference(relu, y=6**-0.5, text="1/√6")
    some = MEANS >= 0  # the source draws these, because S is even in β
    for beta, color, row in zip(MEANS[some], style.sequence(int(some.sum())), data["identity"][some], strict=True):
        identity.plot(data["gamma"], row, color=color, label=f"β = {beta:g}")
    style.reference(identity, y=FLOOR, text="√(2/π)")
    for ax, title in ((relu, "Squared ReLU"), (identity, "No activation")):
        ax.set_ylim(0, 1.05)
        ax.set_xlim(0, DRAWN)
        style.panel(ax, "γ, spread of the logits", "sparsity S", title, legend="below", columns=5)

    # Rows of decaying weights under their bound, and noisy features.
    for index, (lam, row, bound) in enumerate(zip(DECAYS, data["decay"], data["decay_bound"], strict=True)):
        look = style.cycle(index)
        decay.plot(COUNTS, row, look["marker"], color=look["color"], label=f"λ = {lam:g}")
        decay.plot(COUNTS, bound, color=look["color"], linewidth=1)
    style.panel(decay, "n, tokens", "sparsity S", "Decay under its bound", log="xy", legend="lower left")
    noisy.plot(NOISES, data["near_median"], "o-", color=style.colour("measured"))
    style.panel(noisy, "σ̃/μ̃ of a feature", "share within σ̃/10 of the median", "Noisy non-negative features", log="x")
    return drawing


def _ends(data: Data) -> Measured:
    """S of squared ReLU at the least and the largest γ, by the sign of β."""
    relu, signs = data["relu"], (MEANS < 0, MEANS > 0)
    return Measured(
        [relu[signs[0], 0].max(), relu[:, -1].min(), relu[signs[1], :].min()],
        where=["β < 0, least γ", "all β, largest γ", "β > 0, any γ"],
        reads=[relu],
        numbers={"narrow": data["gamma"][0], "wide": data["gamma"][-1], "least": relu.min()},
    )


def _bias(data: Data) -> Measured:
    """S after a bias of the keys that lowers β by 4, less S before, largest over γ; of exp the largest change of log S.

    The γ of the plot, up to `DRAWN`, and for exp those where S does not underflow.
    """
    shown = data["gamma"] <= DRAWN
    relu, exp = data["relu"][:, shown], data["exp"][:, data["exp"].min(axis=0) > 0]
    low, zero, high = (int(np.flatnonzero(beta == MEANS)[0]) for beta in (-BIAS, 0.0, BIAS))
    return Measured(
        [(relu[zero] - relu[high]).max(), (relu[low] - relu[zero]).max(), np.ptp(np.log(exp), axis=0).max()],
        where=[f"squared ReLU, β from {BIAS:g} to 0", f"squared ReLU, β from 0 to {-BIAS:g}", "exp: change of log S"],
        reads=[data["relu"], data["exp"]],
        numbers={"drawn": DRAWN, "one": data["relu"][low, np.argmin(np.abs(data["gamma"] - 1))]},
    )


su = functools.partial(published, source="su2023concentrate", formula=True)
ROWS = (
    su(
        "fixed-relu2-picture",
        r"At fixed $\beta$ the sparsity $S$ of $\mathrm{relu}^{2}$ comes near 0, as $\gamma$ varies, only where "
        r"$\beta\lt0$.",
        _ends,
        (np.array([0, 0.05, 0.05]), np.array([0.05, 1, 1])),
        place="section with two examples, its plot",
        hypotheses=r"Gaussian keys, $n\to\infty$; 9 values of $\beta$ from $-4$ to 4, $\gamma=<narrow:g>\thinspace"
        r"\ldots\thinspace<wide:g>$; the plot itself was not seen, its text says what it shows",
        interval_from=r"$S\to0$ is read as $S\lt0.05$",
        note=r"at $\beta\lt0$ it is near 0 where $\gamma$ is small and rises with $\gamma$ towards $1/\sqrt{6}$",
    ),
    su(
        "fixed-key-bias",
        r"Unlike with the exponential, a bias of the keys can help attention by $\mathrm{relu}^{2}$.",
        _bias,
        (np.array([-np.inf, -np.inf, 0]), np.array([0, 0, 1e-9])),
        place="section with two examples, last sentence on the plot",
        hypotheses=r"a bias of the keys moves $\beta=q\cdot\mu$ and leaves $\gamma$; to help is to lower $S$; "
        r"$\gamma\leq<drawn:g>$",
        interval_from="the sign of the change; rounding of float64, for a sum of exponentials",
        note=r"$S$ after a bias less $S$ before, at the $\gamma$ where it helps least; of the exponential the largest "
        r"change of $\log S$ over all $\beta$; at $\gamma$ near 1 a bias to $\beta=-4$ takes $S$ of "
        r"$\mathrm{relu}^{2}$ from $1/\sqrt{6}$ to <one:.3f>",
    ),
    su(
        "fixed-identity-picture",
        "Without an activation no line of the plot comes near 0: there is a rather high lower limit.",
        lambda data: Measured(
            [
                data["identity"].min(),
                data["identity"].min() / FLOOR,
                np.abs(data["identity"] - data["identity"][::-1]).max(),
            ],
            where=["least $S$", "least $S$ over $\\sqrt{2/\\pi}$", "$\\beta$ against $-\\beta$"],
            reads=[data["identity"]],
        ),
        (np.array([0.5, 1 - 1e-9, 0]), np.array([1, 1.01, 1e-12])),
        place="section on minimal linear attention, its plot",
        hypotheses=r"Gaussian keys, $n\to\infty$; $\beta$ from $-4$ to 4",
        interval_from="our reading of rather high; the infimum; rounding of float64",
        note=r"the source draws $\beta\geq0$, because $S$ is even",
    ),
    su(
        "fixed-decay-bound",
        r"For decaying weights $S\lt\sqrt{(1+\lambda)/(n(1-\lambda)(1+\lambda^{n}))}$.",
        lambda data: Measured(
            data["decay"] / data["decay_bound"],
            where=[f"λ = {lam:g}, n = {n}" for lam in DECAYS for n in COUNTS],
            reads=[data["decay"], data["decay_bound"]],
        ),
        at_most(1 + 1e-12),
        place="section on linear decay",
        hypotheses=r"weights $\lambda^{n-j}$, $0\lt\lambda\lt1$; $S$ by its definition",
        interval_from="the inequality; rounding of float64",
        note=r"measured over the bound; the quotient is $\sqrt{1-\lambda^{n}}$, below 1 at every $n$ and 1 to rounding "
        "for long rows",
    ),
    su(
        "fixed-most-alike",
        "Most elements of a non-negative sequence of a very low signal-to-noise ratio are alike.",
        lambda data: Measured(
            data["near_median"][NOISES >= 10],
            where=[f"σ̃/μ̃ = {noise:g}" for noise in NOISES[NOISES >= 10]],
            reads=[data["near_median"]],
            numbers={"one": data["near_median"][0]},
        ),
        at_least(0.9),
        place="section on general linear attention",
        hypotheses=r"gamma features; alike: within a tenth of a standard deviation of the median",
        interval_from="our reading of most: nine tenths",
        note=r"by Markov's inequality at least $1-10\thinspace\tilde{\mu}/\tilde{\sigma}$ of any such sequence is "
        r"within a tenth of $\tilde{\sigma}$ of 0; at $\tilde{\sigma}/\tilde{\mu}=1$ it is <one:.2f>",
    ),
)
