"""Rows of the figure `clustering`: statements about the sphere, about norms, and about the circle."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.ledger import Claim, at_least, at_most, law, near, published

IDENTITY = "W_Q = W_K = W_V = I, tokens of length 1"
PAGE = "docs/clustering.md"
PRINTED_MODES = {5: 3, 7: 4}  # the fastest mode at each β, as printed
# Fixed before the run: of a cosine, of a ratio of speeds (a step of 0.01 moves it by as much), of an exponent, in nats
# a layer, of the number of maxima and of a rate of growth.
COSINE, RATIO, EXPONENT, NATS, MAXIMA, GROWTH = 1e-3, 0.03, 0.02, 1e-3, 0.15, 0.01
Data = Mapping[str, np.ndarray]


def sphere(data: Data) -> list[Claim]:
    """The curve of orthogonal tokens, and that of uniform ones in high dimension."""
    tokens, beta = data["setting"]
    setting = f"{IDENTITY}; here n = {tokens:g}, β = {beta:g}"
    # The deviation over √(log d / d), relative to that in the smallest dimension.
    d = data["dimensions"].astype(float)
    bound = np.sqrt(np.log(d) / d)
    relative = data["worst"] / data["worst"][0] / (bound / bound[0])
    share = data["worst_error"] / data["worst"]
    error = relative * np.sqrt(share**2 + np.where(np.arange(len(d)) == 0, 0, share[0] ** 2))
    return [
        published("cluster-curve", "The common cosine of tokens that are orthogonal at first follows "
                  "ρ̇ = 2(1 − ρ)((n − 1)ρ + 1)/(e^{β(1−ρ)} + n − 1).",
                  np.abs(data["orthogonal"] - data["flow"]).max(), at_most(COSINE),
                  formula=True, source="geshkovski2025-code",
                  place="curve.ipynb, `ode_func`; theorem on orthogonal tokens, section 6.2",
                  hypotheses=f"{setting}; layers of step h extrapolated to h = 0", interval_from="our tolerance: 0.001",
                  reads=[data["apart"]],
                  note=f"largest distance over time; pairs differ by {data['apart'].max():.1e} at most"),
        published("cluster-dimension", "Cosines of independent uniform tokens stay within a multiple of "
                  "√(log d / d) of that curve, with a probability that tends to 1.", relative[1:], at_most(1.0),
                  source="geshkovski2025", place="theorem of section 6.2, proved in appendix D",
                  hypotheses=f"{setting}; n and β fixed, d large", standard_error=error[1:], reads=[relative],
                  interval_from="our reading: over √(log d / d), it does not rise with d",
                  where=[f"d = {each:g}" for each in d[1:]],
                  note=f"largest deviation over pairs and time, over √(log d / d), relative to that at "
                  f"d = {d[0]:g}; mean over draws"),
    ]  # fmt: skip


def norms(data: Data, names: Sequence[str], labels: Mapping[str, str]) -> list[Claim]:
    """Speeds at first and in the end under five norms."""
    tokens, beta, step, dimension = data["norm_setting"]
    setting = f"{IDENTITY}, n = {tokens:g}, β = {beta:g}, lengths 1 at first"
    at = {norm: index for index, norm in enumerate(names)}
    # As printed for tokens that are orthogonal and of length 1 at first, and nGPT's α = 1.
    slow, fast = 2 / (math.exp(beta) + tokens - 1), 2 / math.sqrt(math.exp(2 * beta) + tokens - 1)
    printed = np.array([fast if norm in ("ngpt", "peri") else slow for norm in names])
    asked = [at[norm] for norm in ("post", "pre", "peri", "ngpt")]
    last, slower = data["norm_log_gap"][:, -1], [at["pre"], at["mix"]]
    fixed, growing = [at["post"], at["ngpt"]], [at["mix"], at["pre"], at["peri"]]
    rates = np.array([-2 * math.log1p(step), 2 * math.log1p(-step)])
    neighbours = ["karagodin2025"]
    return [
        published("cluster-first-speed", "Orthogonal tokens begin to approach at a rate ρ̇ of 2/(e^β + n − 1) under "
                  "Post-LN and Pre-LN, and of 2/√(e^{2β} + n − 1) under Peri-LN and nGPT.",
                  (data["norm_first"] / printed)[asked], near(1, RATIO), formula=True, source="karagodin2025-speeds",
                  place="theorem 4.1, as a summary restates it", hypotheses=setting,
                  where=[labels[names[index]] for index in asked], interval_from="our tolerance: 0.03",
                  note="measured in a layer of step 0.01, over the printed rate"),
        published("cluster-late-speed", "In the end 1 − ρ falls like e^{−2t} under Post-LN, like 1/t² under Pre-LN and "
                  "Peri-LN, and like e^{−4√t} with steps of 1/√t.", data["norm_late"],
                  (np.array([-2, -2, -2, -4]) - EXPONENT, np.array([-2, -2, -2, -4]) + EXPONENT),
                  formula=True,
                  source="karagodin2025-speeds", place="theorem 4.3 and its table, as a summary restates them",
                  hypotheses=f"{setting}; continuous time", interval_from="our tolerance: 0.02",
                  where=["Post-LN", "Pre-LN", "Peri-LN", "1/√t"],
                  note="exponents of the integrated equations; the source gives speeds, e^{−2t}, t⁻³, e^{−4√t}/√t"),
        published("cluster-resist", "Pre-LN and Mix-LN resist late collapse better than Post-LN.",
                  last[slower] - last[at["post"]], at_least(0), source="karagodin2025-speeds",
                  place="discussion, as a summary restates it", interval_from="the sign", where=["Pre-LN", "Mix-LN"],
                  hypotheses=f"{setting}, d = {dimension:g}, h = {step:g}; uniform tokens",
                  standard_error=data["norm_error"][slower, -1],
                  note=f"log(mean 1 − cos) less that of Post-LN after {data['norm_law'].shape[1] - 1} layers"),
        law("cluster-fixed-length", "Where tokens are brought back to one length, log(1 − cos) falls by 2 log(1 + h) a "
            "layer under Post-LN and by −2 log(1 − h) under nGPT, whatever n, β and the tokens.",
            data["norm_slope"][fixed] - rates, near(0, NATS), proof="proved", place=PAGE, neighbours=neighbours,
            hypotheses=f"{IDENTITY}; close tokens; here uniform ones after {data['norm_law'].shape[1] - 1} layers",
            standard_error=data["norm_slope_error"][fixed], where=["Post-LN", "nGPT"],
            interval_from="our tolerance: 0.001 nats", note="measured less predicted"),
        law("cluster-growing-length", "Where the stream grows, (1 − cos) times its squared length stays constant, so "
            "that 1 − cos falls with the second power of depth.", data["norm_product"][growing], near(0, 0.02),
            proof="proved", place=PAGE, neighbours=neighbours,
            hypotheses=f"{IDENTITY}; close tokens; here uniform ones",
            standard_error=data["norm_product_error"][growing],
            where=[labels[names[index]] for index in growing], interval_from="our tolerance: 0.02 nats",
            note="change of log((1 − cos) r²) over the last quarter of the layers"),
    ]  # fmt: skip


def shares(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """By β and number of tokens, the share of runs with as many clusters as the fastest mode, and its error."""
    share = (data["count"] == data["fastest"][:, None, None]).mean(axis=2)
    return share, np.sqrt(share * (1 - share) / data["count"].shape[2])


def power(number: float) -> str:
    """2·10⁴ for 2e4."""
    digits, _, power = f"{number:.0e}".partition("e+")
    return f"{digits}·10".removeprefix("1·") + str(int(power)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def circle(data: Data) -> list[Claim]:
    """Modes, their growth, and the number of clusters."""
    betas, count, fastest = data["betas"], data["count"], data["fastest"]
    runs, labels = count.shape[2], [f"β = {beta:g}" for beta in betas]
    share, _ = shares(data)
    others = np.stack([np.where(fastest == k, -1, (count[:, -1] == k).mean(axis=1)) for k in range(1, 16)])
    second = others.max(axis=0)
    lead = share[:, -1] - second
    lead_error = np.sqrt(np.maximum(share[:, -1] + second - lead**2, 0) / runs)
    known = [index for index, beta in enumerate(betas) if beta in PRINTED_MODES]
    # Modes of a size that noise of rounding does not reach: those within a half of the largest rate.
    grows = data["growth"] > 0.5 * data["growth"].max(axis=1, keepdims=True)
    difference = np.where(grows, data["rate"] - data["growth"], 0)
    worst = np.abs(difference).argmax(axis=1)
    pick = np.arange(len(betas)), worst
    measured = np.where(grows, data["rate"], -1).argmax(axis=1)
    setting = f"softmax attention on the circle, {IDENTITY}; independent uniform tokens"
    most = f"N = {power(data['sizes'][-1])}"
    return [
        published("cluster-fastest", "Of the Fourier modes on the circle, the one with the largest k² I_k(β) grows "
                  "most: the third at β = 5 and the fourth at β = 7.", measured[known],
                  near([PRINTED_MODES[int(betas[index])] for index in known], 0.5),
                  formula=True, source="bruno2025-code", place="experiments.ipynb, `g_coeff`", hypotheses=setting,
                  where=[labels[index] for index in known], interval_from="an integer",
                  reads=[data["rate"], data["growth"]], note=f"mode with the largest measured rate; {most}"),
        published("cluster-metastable", "In the limit of many tokens, the number of clusters that stay for long is the "
                  "index of the fastest mode.", lead, at_least(0), source="bruno2025", place="abstract",
                  hypotheses=f"{setting}; here {most}, counted a time of 4 after the linear stage",
                  standard_error=lead_error, where=labels, reads=[count],
                  interval_from="our reading: no other number as frequent",
                  note=f"share of {runs} runs with that number less the largest other share"),
        law("cluster-growth", "Under softmax, mode k of a nearly even density on the circle grows at the rate "
            "k² I_k(β)/(β I₀(β)).", difference[pick], near(0, GROWTH), proof="derived", place=PAGE,
            neighbours=["bruno2025", "bruno2025-code"], hypotheses=f"{setting}; to first order; {most}",
            standard_error=data["rate_error"][pick], interval_from="our tolerance: 0.01", reads=[data["growth"]],
            where=[f"{label}, k = {k}" for label, k in zip(labels, worst, strict=True)],
            note="measured rate of log|m_k| less predicted, the worst mode of at least half the largest rate"),
        law("cluster-maxima", "While modes are small, attention's field Σ_j e^{β cos(φ − φ_j)} has √(λ₄/λ₂) maxima "
            "on average, λ_j = Σ k^j (I_k/I₀)² e^{2σ_k t}.", data["maxima"] - data["expected"], near(0, MAXIMA),
            proof="derived", place=PAGE, neighbours=["rice1945", "geshkovski2024modes"],
            standard_error=data["maxima_error"], where=labels,
            hypotheses=f"{setting}; {most}; half the linear stage", interval_from="our tolerance: 0.15",
            note="measured less predicted; Geshkovski, Rigollet & Sun count modes on the line in this way, at first"),
    ]  # fmt: skip
