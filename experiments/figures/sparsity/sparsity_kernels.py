"""Sparsity S of each way of turning logits into weights, in closed form and measured."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.sparsity import _sparsity_samples as samples
from experiments.figures.sparsity._sparsity_samples import (
    EXP,
    FEATURE_SPREAD,
    IDENTITY,
    KERNEL,
    RATIO,
    RELU,
    SPREAD,
    Spec,
)
from experiments.ledger import Measured, near, published
from experiments.lib import style
from experiments.lib.figure import About
from rc_jax import sparsity

ABOUT = About(
    title="Sparsity of random rows against its closed forms",
    caption=(
        "The panels show the sparsity S of a row of weights (1: uniform; 1/√n: one token). Lines are closed forms "
        "for many keys. Hollow points are keys drawn directly, ± 1 standard error. Filled points are 64 rows of each "
        "head of 1024 random attention layers (quick; full: all rows of 4096; linear: an eighth of them), with the "
        "mean of S in bins of γ or of β/γ. The S of n keys is off by an order of 1/n. Of the weights drawn here, "
        "those of softmax (γ → ∞), squared ReLU (β/γ → −∞) and decay (n → ∞) reach 0. The figure focus_map has all "
        "kinds of weights."
    ),
    formula="S = E|a|/√E a²;  softmax: e^{−γ²/2};  identity: ≥ √(2/π);  relu², β=0: 1/√6;  decay: → √((1+λ)/(n(1−λ)))",
    topic="sparsity",
    minutes={"smoke": 0.3, "quick": 0.55, "full": 8},
    core=True,
)


PRESETS = {
    "smoke": Spec(draws=2**14, sharp_draws=2**14, initialisations=16, tokens=64, feature_draws=2**12,
                  row_tokens=(16, 64), decay_tokens=(4, 64, 256), isotropy_draws=2**14),
    "quick": Spec(),
    "full": Spec(draws=2**24, initialisations=4096, rows=256, feature_draws=2**20,
                 decay_tokens=(4, 16, 64, 256, 1024, 4096)),
}  # fmt: skip
Data = Mapping[str, np.ndarray]


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Direct draws, random layers, decaying rows, feature draws, and the lines."""
    key = jax.random.key(spec.seed)
    direct, layers, rows, features = (jax.random.fold_in(key, role) for role in range(4))
    data = {"features": np.asarray(spec.features)}
    data |= samples.direct(direct, spec) | samples.layers(layers, spec) | samples.linear_rows(rows, spec)
    data |= samples.decay_rows(spec) | samples.features(features, spec) | samples.isotropy(spec) | samples.printed()
    return data | _lines(spec)


def _lines(spec: Spec) -> dict[str, np.ndarray]:
    """Closed forms on fine grids."""
    gamma, ratio = np.linspace(0, 3, 121), np.linspace(-7, 4, 221)
    n = np.logspace(0, math.log10(max(spec.decay_tokens)), 121)
    norm_ratio = np.logspace(-math.log10(spec.features) / 2, 0, 61)
    lines = {
        "line_gamma": gamma, "line_exp": sparsity.exponential(gamma), "line_ratio": ratio,
        "line_relu": sparsity.relu_squared(ratio, 1.0), "line_identity": sparsity.identity(ratio, 1.0),
        "line_n": n, "line_decay": sparsity.decay(np.asarray(spec.decays)[:, None], n[None]),
        "line_norm_ratio": norm_ratio,
        "line_features": np.stack([1 / np.hypot(1, spread * norm_ratio) for spread in FEATURE_SPREAD]),
    }  # fmt: skip
    return {name: np.asarray(line, float) for name, line in lines.items()}


def plot(data: Data) -> Figure:
    """Four panels: S against γ, against β/γ, against n, and against the unevenness of a query's features."""
    drawing, axes = style.figure(columns=2, rows=2)
    for panel, ax in zip((_against_gamma, _against_ratio, _against_n, _against_features), axes, strict=True):
        panel(ax, data)
    return drawing


def _cases(kernel: int, ratio: float | None = None) -> np.ndarray:
    """True at the direct draws of a kernel, and of one β/γ."""
    return (kernel == KERNEL) & (ratio is None or ratio == RATIO)


def _hollow(ax: Axes, x: np.ndarray, data: Data, chosen: np.ndarray, meaning: str, marker: str) -> None:
    ax.errorbar(
        x[chosen], data["direct"][chosen], data["direct_se"][chosen],
        color=style.colour(meaning), marker=marker, mfc="none", linestyle="none", markersize=6.5, capsize=2,
    )  # fmt: skip


def _filled(ax: Axes, data: Data, name: str, marker: str) -> None:
    ax.errorbar(
        data[f"{name}_at"], data[f"{name}_measured"], data[f"{name}_se"],
        color=style.colour(name), marker=marker, linestyle="none", markersize=4.5,
    )  # fmt: skip


def _say(ax: Axes, x: float, y: float, text: str, meaning: str, **options: Any) -> None:
    ax.annotate(text, (x, y), color=style.colour(meaning), fontsize=9, **options)


def _against_gamma(ax: Axes, data: Data) -> None:
    ax.plot(data["line_gamma"], data["line_exp"], color=style.colour("softmax"))
    # Squared ReLU at three β/γ, identity, softmax; lines are closed forms.
    for ratio, dash in zip((0.0, -1.0, -2.0), style.DASHES, strict=False):
        chosen = _cases(RELU, ratio)
        ax.axhline(data["direct_theory"][chosen][0], color=style.colour("relu_squared"), linestyle=dash)
        _hollow(ax, SPREAD, data, chosen, "relu_squared", "s")
        _say(ax, 0.03, 0.88 * data["direct_theory"][chosen][0], f"relu², β/γ = {ratio:g}", "relu_squared", va="top")
    ax.axhline(data["direct_theory"][_cases(IDENTITY, 0.0)][0], color=style.colour("identity"))
    _hollow(ax, SPREAD, data, _cases(IDENTITY, 0.0), "identity", "^")
    _hollow(ax, SPREAD, data, _cases(EXP), "softmax", "o")
    _filled(ax, data, "softmax", "o")
    _say(ax, 2.98, 0.84, "identity, β = 0", "identity", ha="right", va="bottom")
    _say(ax, 2.25, 0.1, "softmax,\n$e^{-γ^2/2}$", "softmax")
    ax.plot([], [], "o", color=style.colour("reference"), mfc="none", label="keys drawn directly")
    ax.plot([], [], "o", color=style.colour("reference"), markersize=4.5, label="random attention layers")
    ax.set(ylim=(0.01, 1.3), xlim=(0, 3.05))
    style.panel(ax, "γ = σ‖q‖, spread of the logits (nats)", "sparsity S", "At fixed β/γ only softmax sharpens with γ",
                log="y", legend="lower left")  # fmt: skip


def _against_ratio(ax: Axes, data: Data) -> None:
    # Both homogeneous kernels, and the numbers that the source prints.
    for kernel, name, line, marker in (
        (RELU, "relu_squared", "line_relu", "s"),
        (IDENTITY, "identity", "line_identity", "^"),
    ):
        ax.plot(data["line_ratio"], data[line], color=style.colour(name))
        _hollow(ax, RATIO, data, _cases(kernel) & (SPREAD == 1), name, marker)
        _filled(ax, data, name, marker)
    style.reference(ax, y=math.sqrt(2 / math.pi))
    _say(ax, -6.9, 0.72, "√(2/π) = 0.798, floor of identity", "reference", va="top")
    _say(ax, -5.2, 2e-3, "relu²", "relu_squared", ha="right")
    _say(ax, -3.4, 0.98, "identity", "identity", va="bottom")
    ax.annotate("0.072", (-2, 0.072), (10, -10), textcoords="offset points", fontsize=9)
    ax.annotate("1/√6", (0, 6**-0.5), (10, -10), textcoords="offset points", fontsize=9)
    ax.set(ylim=(1e-6, 2), xlim=(-7, 4.2))
    style.panel(ax, "β/γ, mean over spread of the logits", "sparsity S", "relu² focuses only as β/γ → −∞", log="y")


def _against_n(ax: Axes, data: Data) -> None:
    tints = style.sequence(len(data["decay_lam"]))
    for index, (lam, tint) in enumerate(zip(data["decay_lam"], tints, strict=True)):
        ax.plot(data["line_n"], data["line_decay"][index], color=tint)
        ax.plot(data["decay_n"], data["decay_measured"][index], "D", color=tint, markersize=4.5,
                label=f"decay, λ = {lam:g}")  # fmt: skip
    ax.errorbar(
        data["linear_n"], data["linear_measured"], data["linear_se"], color=style.colour("linear"), marker="v",
        linestyle="none", label="linear, features elu + 1",
    )  # fmt: skip
    ax.set_ylim(None, 1.3)
    style.panel(ax, "n, number of tokens", "sparsity S", "Decay focuses as n grows; linear does not", log="xy",
                legend="lower left")  # fmt: skip


def _against_features(ax: Axes, data: Data) -> None:
    limit = float(np.sqrt(data["features"]))
    for index, spread in enumerate(FEATURE_SPREAD):
        look: dict[str, Any] = style.cycle(index) | {"linestyle": "none"}
        ax.plot(data["line_norm_ratio"], data["line_features"][index], color=look["color"])
        ax.errorbar(
            data["norm_ratio"], data["features_measured"][index], data["features_se"][index], mfc="none", capsize=2,
            label=f"σ̃/μ̃ = {spread:.3g}", **look,
        )  # fmt: skip
    # The printed maximum √d against the range [1/√d, 1].
    ax.axvspan(1, 1.1 * limit, color=style.colour("published"), alpha=0.12, linewidth=0)
    _say(ax, math.sqrt(limit), 0.62, "printed maximum: √d;\nbut ‖q̃‖₂ ≤ ‖q̃‖₁", "published", ha="center")
    style.reference(ax, x=1 / limit)
    _say(ax, 1.06 / limit, 0.3, "1/√d: even", "reference")
    _say(ax, 0.95, 0.22, "1: one feature", "reference", ha="right")
    ax.set(xscale="log", ylim=(0.2, 1.05), xlim=(0.9 / limit, 1.1 * limit))
    ax.minorticks_off()
    ticks = [1 / limit, 0.25, 0.5, 1, 2, 4, limit]
    ax.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    style.panel(ax, f"‖q̃‖₂/‖q̃‖₁ of the query's d = {int(data['features'])} features", "sparsity S",
                "Linear attention: bounded by its features", legend="upper right")  # fmt: skip


def _softmax_over_formula(data: Data) -> Measured:
    """S of softmax rows with keys drawn at random over its formula, less 1."""
    soft = _cases(EXP)
    theory = data["direct_theory"][soft]
    return Measured(
        data["direct"][soft] / theory - 1,
        standard_error=data["direct_se"][soft] / theory,
        where=[f"γ = {gamma:g}" for gamma in SPREAD[soft]],
    )


def _printed_over_integrals(data: Data, kernel: str) -> Measured:
    """The printed form of S over the ratio of the two integrals, less 1."""
    return Measured(
        data[f"form_{kernel}"] / data[f"form_{kernel}_integrals"] - 1,
        where=[f"β/γ = {ratio:g}" for ratio in data["form_ratio"]],
    )


def _negative_over_positive(data: Data) -> Measured:
    """S without an activation of keys drawn with mean −β over that with β, less 1."""
    ratios = (4.0, 2.0, 1.0)
    cases = [[int(np.flatnonzero(_cases(IDENTITY, sign * ratio))[0]) for ratio in ratios] for sign in (-1, 1)]
    value, error = data["direct"][cases], data["direct_se"][cases]
    return Measured(
        value[0] / value[1] - 1,
        standard_error=np.hypot(*(error / value)),
        where=[f"β/γ = ±{ratio:g}" for ratio in ratios],
    )


def _queries_over_form(data: Data) -> Measured:
    """S of queries that share β and γ over the closed form, less 1."""
    theory = data["isotropy_theory"][:, None]
    return Measured(
        data["isotropy"] / theory - 1,
        standard_error=(data["isotropy_se"] / theory).ravel(),
        where=[f"{kernel}, query {index + 1}" for kernel in samples.KERNELS for index in range(samples.QUERIES)],
    )


def _features_over_formula(data: Data) -> Measured:
    """S of linear attention with features drawn at random over its formula, less 1."""
    names = [f"‖q̃‖₂/‖q̃‖₁ = {ratio:.3g}" for ratio in data["norm_ratio"]]
    return Measured(
        data["features_measured"] / data["features_theory"] - 1,
        standard_error=(data["features_se"] / data["features_theory"]).ravel(),
        where=[f"σ̃/μ̃ = {spread:.3g}, {name}" for spread in FEATURE_SPREAD for name in names],
    )


def _decay_over_formula(data: Data) -> Measured:
    """S of the last row of a decaying layer over its formula, less 1, by λ < 1 and n."""
    some = data["decay_lam"] < 1
    lam, n = data["decay_lam"][some][:, None], data["decay_n"].astype(float)[None]
    form = np.sqrt((1 - lam**n) * (1 + lam) / (n * (1 - lam) * (1 + lam**n)))
    where = [f"λ = {rate:g}, n = {size:g}" for rate in lam[:, 0] for size in n[0]]
    return Measured(data["decay_measured"][some] / form - 1, where=where)


def _decay_exponents(data: Data) -> Measured:
    """Local exponent of S at the largest n, where n is large against 1/(1 − λ)."""
    forgetting = data["decay_lam"] <= 0.9
    rows, n = data["decay_measured"][forgetting], data["decay_n"].astype(float)
    exponents = np.log(rows[:, -1] / rows[:, -2]) / np.log(n[-1] / n[-2])
    return Measured(
        exponents,
        where=[f"λ = {each:g}" for each in data["decay_lam"][forgetting]],
        numbers={"exponents": ", ".join(f"{each:.3f}" for each in exponents)},
    )


# Every row tests a formula or a limit that Su prints.
su = functools.partial(published, source="su2023concentrate", formula=True)
of_keys = functools.partial(
    su,
    hypotheses=r"keys $N(\mu,\sigma^{2}I)$, $n\to\infty$; $\beta=q\cdot\mu$, "
    r"$\gamma=\sigma\lVert q\rVert$",
)
EXACT = "the formula is exact; rounding of float64 and of the integrals"
ROWS = (
    of_keys(
        "sparsity-exp",
        r"The sparsity $S$ of softmax rows is $e^{-\sigma^{2}\lVert q\rVert^{2}/2}$.",
        _softmax_over_formula,
        near(0, 0.03),
        place="section with two examples",
        interval_from="our tolerance",
        note="keys drawn at random, over formula less 1",
    ),
    of_keys(
        "sparsity-relu2-form",
        r"For $f=\mathrm{relu}^{2}$ the sparsity $S$ is the closed form in $\beta$, $\gamma$ and "
        r"$\mathrm{erf}(\beta/(\sqrt{2}\thinspace\gamma))$ that the source prints.",
        lambda data: _printed_over_integrals(data, "relu2"),
        near(0, 1e-8),
        place="section with two examples",
        interval_from=EXACT,
        note=r"over the ratio of the two integrals, less 1; $S=1/\sqrt{6}$ at $\beta=0$",
    ),
    of_keys(
        "sparsity-identity-form",
        r"Without an activation $S$ is $(\sqrt{2/\pi}\thinspace\gamma\thinspace "
        r"e^{-\beta^{2}/2\gamma^{2}}+\beta\thinspace\mathrm{erf}(\beta/(\sqrt{2}\thinspace\gamma)))/\sqrt{\beta^{2}+\gamma^{2}}$.",
        lambda data: _printed_over_integrals(data, "identity"),
        near(0, 1e-8),
        place="section on minimal linear attention",
        interval_from=EXACT,
        note="over the ratio of the two integrals, less 1",
    ),
    of_keys(
        "sparsity-identity-even",
        r"Without an activation $S$ is an even function of $\beta$.",
        _negative_over_positive,
        near(0, 0.002),
        place="section on minimal linear attention",
        interval_from="our tolerance",
        note=r"$S$ of keys drawn with mean $-\beta$ over that with $\beta$, less 1; proved by "
        r"$\varepsilon\to-\varepsilon$",
    ),
    of_keys(
        "sparsity-isotropy",
        r"The sparsity $S$ depends on $q$, $\mu$ and $\sigma$ only by $q\cdot\mu$ and $\sigma\lVert q\rVert$, because "
        "the noise of the keys is isotropic.",
        _queries_over_form,
        near(0, 0.03),
        place="section on the simplified form",
        interval_from="our tolerance",
        note=r"queries of other directions and lengths and means of other directions, at one $\beta$ and $\gamma$; "
        "$S$ over its closed form, less 1",
    ),
    su(
        "sparsity-linear",
        "For independent, equally distributed non-negative features $S$ is "
        r"$1/\sqrt{1+(\tilde{\sigma}/\tilde{\mu}\cdot\lVert \tilde{q}\rVert_2/\lVert \tilde{q}\rVert_1)^{2}}$.",
        _features_over_formula,
        near(0, 0.03),
        place="section on general linear attention",
        hypotheses=r"non-negative, independent, equally distributed features; $n\to\infty$",
        interval_from="our tolerance",
        note="features drawn at random, over formula less 1",
    ),
    su(
        "sparsity-norm-ratio",
        r"The largest value of $\lVert \tilde{q}\rVert_2/\lVert \tilde{q}\rVert_1$ over queries of $d$ features is "
        r"$\sqrt{d}$, so that to enlarge it means to enlarge $d$.",
        lambda data: Measured(
            data["norm_share"], reads=[data["norm_ratio"]], numbers={"features": int(data["features"])}
        ),
        near(1, 1e-5),
        place="section on general linear attention",
        hypotheses="$d=<features>$",
        interval_from="the formula is exact; rounding of float32",
        note=r"largest ratio found over $\sqrt{d}$; the ratio lies in $[1/\sqrt{d},1]$ by Cauchy and Schwarz, and is "
        r"1 for one feature; $\sqrt{d}$ is the largest $\lVert \tilde{q}\rVert_1/\lVert \tilde{q}\rVert_2$; the "
        r"formula for $S$, the other route $\tilde{\sigma}/\tilde{\mu}$ and the argument from rank stand",
    ),
    su(
        "sparsity-decay-form",
        r"For weights $\lambda^{n-1}$, …, $\lambda$, 1 the sparsity is "
        r"$S=\sqrt{(1-\lambda^{n})(1+\lambda)/(n(1-\lambda)(1+\lambda^{n}))}$.",
        _decay_over_formula,
        near(0, 1e-5),
        place="section on linear decay",
        hypotheses=r"$\lambda\lt1$",
        interval_from="the formula is exact; rounding of float32",
        note=r"$S$ of the last row of a layer, over formula less 1; the limit for $\lambda=1$ is 1",
    ),
    su(
        "sparsity-decay",
        r"For every $\lambda\lt1$ the sparsity $S$ of decaying weights tends to 0 as $n\to\infty$.",
        _decay_exponents,
        near(-0.5, 0.01),
        place="section on linear decay",
        hypotheses=r"$n$ large against $1/(1-\lambda)$",
        interval_from=r"the source's formula falls as $1/\sqrt{n}$; our tolerance",
        note="local exponent of $S$ at the largest $n$: <exponents>",
    ),
)
