"""Rows of the figure `clustering`: statements about the sphere, about norms, and about the circle."""

import functools
import math
from collections.abc import Mapping

import numpy as np

from experiments.figures.particles._layers import LABELS, NORMS
from experiments.ledger import Measured, at_least, at_most, law, near, published

IDENTITY = "$W_Q=W_K=W_V=I$, tokens of length 1"
PAGE = "docs/clustering.md"
AT = {norm: index for index, norm in enumerate(NORMS)}
PRINTED_MODES = {5: 3, 7: 4}  # the fastest mode at each β, as printed
# Fixed before the run: of a cosine, of a ratio of speeds (a step of 0.01 moves it by as much), of an exponent, in nats
# a layer, of the number of maxima and of a rate of growth.
COSINE, RATIO, EXPONENT, NATS, MAXIMA, GROWTH = 1e-3, 0.03, 0.02, 1e-3, 0.15, 0.01
Data = Mapping[str, np.ndarray]


# --- the sphere ------------------------------------------------------------------------------------------------------
def _distance_from_curve(data: Data) -> Measured:
    """The largest distance over time of the cosine of orthogonal tokens from the curve."""
    tokens, beta = data["setting"]
    return Measured(
        np.abs(data["orthogonal"] - data["flow"]).max(),
        reads=[data["apart"]],
        numbers={"tokens": tokens, "beta": beta, "apart": data["apart"].max()},
    )


def _deviation_by_dimension(data: Data) -> Measured:
    """The deviation over √(log d / d), relative to that in the smallest dimension."""
    tokens, beta = data["setting"]
    d = data["dimensions"].astype(float)
    bound = np.sqrt(np.log(d) / d)
    relative = data["worst"] / data["worst"][0] / (bound / bound[0])
    share = data["worst_error"] / data["worst"]
    error = relative * np.sqrt(share**2 + share[0] ** 2)
    return Measured(
        relative[1:],
        standard_error=error[1:],
        where=[f"d = {each:g}" for each in d[1:]],
        reads=[relative],
        numbers={"tokens": tokens, "beta": beta, "smallest": d[0]},
    )


ON_THE_SPHERE = rf"{IDENTITY}; here $n=<tokens:g>$, $\beta=<beta:g>$"
SPHERE = (
    published(
        "cluster-curve",
        "The common cosine of tokens that are orthogonal at first follows "
        r"$\dot{\rho}=2(1-\rho)((n-1)\rho+1)/(e^{\beta(1-\rho)}+n-1)$.",
        _distance_from_curve,
        at_most(COSINE),
        formula=True,
        source="geshkovski2025-code",
        place="curve.ipynb, `ode_func`; theorem on orthogonal tokens, section 6.2",
        hypotheses=f"{ON_THE_SPHERE}; layers of step $h$ extrapolated to $h=0$",
        interval_from="our tolerance: 0.001",
        note="largest distance over time; pairs differ by <apart:.1e> at most",
    ),
    published(
        "cluster-dimension",
        r"Cosines of independent uniform tokens stay within a multiple of $\sqrt{\log d/d}$ of that curve, with a "
        "probability that tends to 1.",
        _deviation_by_dimension,
        at_most(1.0),
        source="geshkovski2025",
        place="theorem of section 6.2, proved in appendix D",
        hypotheses=rf"{ON_THE_SPHERE}; $n$ and $\beta$ fixed, $d$ large",
        interval_from=r"our reading: over $\sqrt{\log d/d}$, it does not rise with $d$",
        note=r"largest deviation over pairs and time, over $\sqrt{\log d/d}$, relative to that at $d=<smallest:g>$; "
        "mean over draws",
    ),
)


# --- norms -----------------------------------------------------------------------------------------------------------
def _numbers_of_norms(data: Data) -> dict[str, float]:
    """Number of tokens, β, step, dimension and number of layers, for texts."""
    tokens, beta, step, dimension = data["norm_setting"]
    layers = data["norm_law"].shape[1] - 1
    return {"tokens": tokens, "beta": beta, "step": step, "dimension": dimension, "layers": layers}


def _first_speeds(data: Data) -> Measured:
    """Speeds of orthogonal tokens in a layer of step 0.01, over the printed ones, with nGPT's α = 1."""
    tokens, beta = data["norm_setting"][:2]
    slow, fast = 2 / (math.exp(beta) + tokens - 1), 2 / math.sqrt(math.exp(2 * beta) + tokens - 1)
    printed = {"post": slow, "pre": slow, "peri": fast, "ngpt": fast}
    return Measured(
        [data["norm_first"][AT[norm]] / speed for norm, speed in printed.items()],
        where=[LABELS[norm] for norm in printed],
        numbers=_numbers_of_norms(data),
    )


def _above_post(data: Data) -> Measured:
    """log(mean 1 − cos) after the last layer of Pre-LN, Mix-LN and nGPT, less that of Post-LN."""
    last, slower = data["norm_log_gap"][:, -1], [AT["pre"], AT["mix"], AT["ngpt"]]
    return Measured(
        last[slower] - last[AT["post"]],
        standard_error=np.hypot(data["norm_error"][slower, -1], data["norm_error"][AT["post"], -1]),
        where=["Pre-LN", "Mix-LN", "nGPT"],
        numbers=_numbers_of_norms(data),
    )


def _peri(data: Data) -> Measured:
    """First speed of Peri-LN over the largest of the others, and its gap late over that of Post-LN, as logarithms."""
    first, last, peri = data["norm_first"], data["norm_log_gap"][:, -1], AT["peri"]
    return Measured(
        [np.log(first[peri] / np.delete(first, peri).max()), last[peri] - last[AT["post"]]],
        standard_error=[0, np.hypot(data["norm_error"][peri, -1], data["norm_error"][AT["post"], -1])],
        where=["at first", "late"],
        reads=[first, last],
        numbers=_numbers_of_norms(data),
    )


def _slopes_less_rates(data: Data) -> Measured:
    """Fall of log(1 − cos) in the last layer where lengths are fixed, less the predicted one."""
    step, fixed = data["norm_setting"][2], [AT["post"], AT["ngpt"]]
    rates = np.array([-2 * math.log1p(step), 2 * math.log1p(-step)])
    return Measured(
        data["norm_slope"][fixed] - rates,
        standard_error=data["norm_slope_error"][fixed],
        where=["Post-LN", "nGPT"],
        numbers=_numbers_of_norms(data),
    )


def _products(data: Data) -> Measured:
    """Change of log((1 − cos) r²) over the last quarter of the layers where the stream grows."""
    growing = ("mix", "pre", "peri")
    at = [AT[norm] for norm in growing]
    return Measured(
        data["norm_product"][at],
        standard_error=data["norm_product_error"][at],
        where=[LABELS[norm] for norm in growing],
    )


OF_NORMS = rf"{IDENTITY}, $n=<tokens:g>$, $\beta=<beta:g>$, lengths 1 at first"
speeds = functools.partial(published, source="karagodin2025-speeds")
speed_law = functools.partial(law, proof="proved", place=PAGE, neighbours=["karagodin2025"])
SPEEDS = (
    speeds(
        "cluster-first-speed",
        r"Orthogonal tokens begin to approach at a rate $\dot{\rho}$ of $2/(e^{\beta}+n-1)$ under Post-LN and Pre-LN, "
        r"and of $2/\sqrt{e^{2\beta}+n-1}$ under Peri-LN and nGPT.",
        _first_speeds,
        near(1, RATIO),
        formula=True,
        place="theorem 4.1, as a summary restates it",
        hypotheses=OF_NORMS,
        interval_from="our tolerance: 0.03",
        note="measured in a layer of step 0.01, over the printed rate",
    ),
    speeds(
        "cluster-late-speed",
        r"In the end $1-\rho$ falls like $e^{-2t}$ under Post-LN, like $1/t^{2}$ under Pre-LN and Peri-LN, and like "
        r"$e^{-4\sqrt{t}}$ with steps of $1/\sqrt{t}$.",
        lambda data: Measured(
            data["norm_late"], where=["Post-LN", "Pre-LN", "Peri-LN", "1/√t"], numbers=_numbers_of_norms(data)
        ),
        near([-2, -2, -2, -4], EXPONENT),
        formula=True,
        place="theorem 4.3 and its table, as a summary restates them",
        hypotheses=f"{OF_NORMS}; continuous time",
        interval_from="our tolerance: 0.02",
        note="exponents of the integrated equations; the source gives speeds, $e^{-2t}$, $t^{-3}$, "
        r"$e^{-4\sqrt{t}}/\sqrt{t}$",
    ),
    speeds(
        "cluster-resist",
        "Pre-LN, Mix-LN and nGPT resist late collapse better than Post-LN.",
        _above_post,
        at_least(0),
        place="discussion, as a summary restates it",
        hypotheses=f"{OF_NORMS}, $d=<dimension:g>$, $h=<step:g>$; uniform tokens",
        interval_from="the sign",
        note=r"log(mean $1-\cos$) less that of Post-LN after <layers> layers; nGPT with the step $h$ at every layer, "
        "as the source's is not known",
    ),
    published(
        "cluster-peri",
        "Of the norms compared Peri-LN is a particularly effective choice.",
        _peri,
        at_least([math.log(1 - RATIO), 0]),
        source="karagodin2025",
        place="abstract",
        hypotheses=f"{OF_NORMS}, $d=<dimension:g>$, $h=<step:g>$",
        interval_from="our reading: no other norm lets tokens approach faster at first, and tokens stay further "
        "apart late "
        "than under Post-LN; our tolerance: 0.03",
        note=r"measured: log of the first speed over the largest of the others, and log(mean $1-\cos$) less that of "
        r"Post-LN "
        "after <layers> layers",
    ),
    speed_law(
        "cluster-fixed-length",
        r"Where tokens are brought back to one length, $\log(1-\cos)$ falls by $2\log(1+h)$ a layer under Post-LN and "
        r"by $-2\log(1-h)$ under nGPT, whatever $n$, $\beta$ and the tokens.",
        _slopes_less_rates,
        near(0, NATS),
        hypotheses=f"{IDENTITY}; close tokens; here uniform ones after <layers> layers",
        interval_from="our tolerance: 0.001 nats",
        note="measured less predicted",
    ),
    speed_law(
        "cluster-growing-length",
        r"Where the stream grows, $(1-\cos)$ times its squared length stays constant, so that $1-\cos$ falls with the "
        "second power of depth.",
        _products,
        near(0, 0.02),
        hypotheses=f"{IDENTITY}; close tokens; here uniform ones",
        interval_from="our tolerance: 0.02 nats",
        note=r"change of $\log((1-\cos)\thinspace r^{2})$ over the last quarter of the layers",
    ),
)


# --- the circle ------------------------------------------------------------------------------------------------------
def shares(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """By β and number of tokens, the share of runs with as many clusters as the fastest mode, and its error."""
    share = (data["count"] == data["fastest"][:, None, None]).mean(axis=2)
    return share, np.sqrt(share * (1 - share) / data["count"].shape[2])


def power(number: float) -> str:
    """2·10⁴ for 2e4."""
    digits, _, power = f"{number:.0e}".partition("e+")
    return f"{digits}·10".removeprefix("1·") + str(int(power)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _most(data: Data) -> dict[str, float]:
    """The largest number of tokens, for texts."""
    return {"most": float(data["sizes"][-1])}


def _labels(data: Data) -> list[str]:
    return [f"β = {beta:g}" for beta in data["betas"]]


def _well_above_noise(data: Data) -> np.ndarray:
    """True at modes that noise of rounding does not reach: those within a half of the largest predicted rate."""
    return data["growth"] > 0.5 * data["growth"].max(axis=1, keepdims=True)


def _fastest(data: Data) -> Measured:
    """The mode with the largest measured rate, at each β that the source prints."""
    modes = np.where(_well_above_noise(data), data["rate"], -1).argmax(axis=1)
    at_beta = dict(zip(data["betas"].tolist(), modes, strict=True))
    return Measured(
        [at_beta.get(beta, math.nan) for beta in PRINTED_MODES],
        where=[f"β = {beta}" for beta in PRINTED_MODES],
        reads=[data["rate"], data["growth"]],
        numbers=_most(data),
    )


def _lead(data: Data) -> Measured:
    """Share of runs with as many clusters as the fastest mode's index, less the largest other share."""
    count, fastest = data["count"][:, -1], data["fastest"]
    share = shares(data)[0][:, -1]
    others = [np.where(fastest == number, -1, (count == number).mean(axis=1)) for number in range(1, 16)]
    second = np.max(others, axis=0)
    lead, runs = share - second, count.shape[1]
    return Measured(
        lead,
        standard_error=np.sqrt(np.maximum(share + second - lead**2, 0) / runs),
        where=_labels(data),
        reads=[data["count"]],
        numbers=_most(data) | {"runs": runs},
    )


def _growth(data: Data) -> Measured:
    """Measured rate of log|m_k| less the predicted one, of the worst mode that grows."""
    difference = np.where(_well_above_noise(data), data["rate"] - data["growth"], 0)
    worst = np.abs(difference).argmax(axis=1)
    pick = np.arange(len(worst)), worst
    return Measured(
        difference[pick],
        standard_error=data["rate_error"][pick],
        where=[f"{label}, k = {k}" for label, k in zip(_labels(data), worst, strict=True)],
        reads=[data["growth"]],
        numbers=_most(data),
    )


def _maxima(data: Data) -> Measured:
    """Measured less predicted number of maxima of the field, at half the linear stage."""
    return Measured(
        data["maxima"] - data["expected"],
        standard_error=data["maxima_error"],
        where=_labels(data),
        numbers=_most(data),
    )


ON_THE_CIRCLE = f"softmax attention on the circle, {IDENTITY}; independent uniform tokens"
CIRCLE = (
    published(
        "cluster-fastest",
        r"Of the Fourier modes on the circle, the one with the largest $k^{2}\thinspace I_k(\beta)$ grows most: the "
        r"third at $\beta=5$ and the fourth at $\beta=7$.",
        _fastest,
        near(list(PRINTED_MODES.values()), 0.5),
        formula=True,
        source="bruno2025-code",
        place="experiments.ipynb, `g_coeff`",
        hypotheses=ON_THE_CIRCLE,
        interval_from="an integer",
        note="mode with the largest measured rate; $N=<most:.0e>$",
    ),
    published(
        "cluster-metastable",
        "In the limit of many tokens the density stays for long near solutions that are periodic with the index of the "
        "fastest mode.",
        _lead,
        at_least(0),
        source="bruno2025",
        place="abstract",
        hypotheses=f"{ON_THE_CIRCLE}; here $N=<most:.0e>$; read as the number of clusters a time of 4 after "
        "the linear stage",
        interval_from="our reading: no other number as frequent",
        note="share of <runs> runs with that number less the largest other share",
    ),
    law(
        "cluster-growth",
        r"Under softmax, mode $k$ of a nearly even density on the circle grows at the rate $k^{2}\thinspace "
        r"I_k(\beta)/(\beta\thinspace I_0(\beta))$.",
        _growth,
        near(0, GROWTH),
        proof="derived",
        place=PAGE,
        neighbours=["bruno2025", "bruno2025-code"],
        hypotheses=f"{ON_THE_CIRCLE}; to first order; $N=<most:.0e>$",
        interval_from="our tolerance: 0.01",
        note=r"measured rate of $\log\lvert m_k\rvert$ less predicted, the worst mode of at least half the largest "
        "rate",
    ),
    law(
        "cluster-maxima",
        r"While modes are small, attention's field $\sum_je^{\beta\cos(\varphi-\varphi_j)}$ has "
        r"$\sqrt{\lambda_4/\lambda_2}$ maxima on average, $\lambda_j=\sum k^{j}\thinspace(I_k/I_0)^{2}\thinspace "
        r"e^{2\sigma_k\thinspace t}$.",
        _maxima,
        near(0, MAXIMA),
        proof="derived",
        place=PAGE,
        neighbours=["rice1945", "geshkovski2024modes"],
        hypotheses=f"{ON_THE_CIRCLE}; $N=<most:.0e>$; half the linear stage",
        interval_from="our tolerance: 0.15",
        note="measured less predicted; Geshkovski, Rigollet & Sun count modes on the line in this way, at first",
    ),
)
