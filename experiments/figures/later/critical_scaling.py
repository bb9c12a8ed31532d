"""Logits γ log n on equicorrelated tokens: where attention's outputs cease to be one vector, how sharply, and why."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.ledger import Measured, law, near, published
from experiments.lib import figure, style
from rc_jax import scale

ABOUT = figure.About(
    title="Critical scaling: β = γ log n on equicorrelated tokens",
    caption=(
        "n unit tokens with all inner products ρ attend to each other with logits γ log n ⟨x_i, x_j⟩. The cosine of "
        "two outputs is a step at γ = 1/(1 − ρ) for infinitely many tokens; for finitely many a slope whose width "
        "falls only like 1/log n. Lines are closed forms, filled points softmax on explicit vectors, hollow points "
        "softmax on random tokens that have these inner products only on average. Orthogonal tokens part at half the "
        "critical γ. Softmax's gradient is largest just below the transition."
    ),
    formula="p_ii = σ((1−ρ)γ log n − log(n−1)),   cos = c/(c + (1−ρ)a²),   c = ρ + (1−ρ)(1−a²)/n,   a = p_ii − p_ij",
    topic="later",
    minutes={"smoke": 0.1, "quick": 0.15, "full": 2.5},
)
FINITE = 2  # index of n = 2²⁰ among the numbers of tokens
SIDES = (0.5, 1.5)  # of the step in (1 − ρ)γ, and outside it at n = 2²⁰
STEEP = 0.01  # how near to its limit a cosine must be there
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Numbers of tokens in closed form, and how many explicit ones in how many dimensions softmax is taken of."""

    dtype: str = "float64"
    tokens: tuple[float, ...] = (64, 1024, 2.0**20, 1e30, 1e300)
    rho: tuple[float, ...] = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9)
    shown: float = 0.5
    points: int = 400
    explicit: int = 1024
    random_dim: int = 32
    draws: int = 4


PRESETS = {
    "smoke": Spec(points=60, explicit=64, random_dim=16, draws=2),
    "quick": Spec(),
    "full": Spec(points=2000, explicit=4096, random_dim=128, draws=16),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Cosines against γ, places and widths against n, in closed form; cosines of explicit and of random tokens."""
    tokens, rho, shown = np.array(spec.tokens), np.array(spec.rho), spec.shown
    with_zero = np.concatenate([[0.0], rho])
    u, some = np.linspace(0, 2, spec.points), np.linspace(0.1, 1.9, 13)  # (1 − ρ)γ
    n = 10 ** np.geomspace(1, 300, 200)
    half_way = scale.equicorrelated.critical_gamma(with_zero[:, None], n[None]) * (1 - with_zero[:, None])
    best = scale.equicorrelated.optimal_gamma(0.0, n)

    def similarity(u: np.ndarray, rho: np.ndarray | float, n: np.ndarray | float) -> np.ndarray:
        return np.asarray(scale.equicorrelated.outputs(u / (1 - rho), rho, n).similarity)

    data = {
        "tokens": tokens, "rho": rho, "with_zero": with_zero, "u": u, "n": n, "some": some,
        "shown": np.asarray(shown), "dim": np.asarray(spec.random_dim), "explicit": np.asarray(spec.explicit),
        "similarity": similarity(u[None], shown, tokens[:, None]),
        "by_rho": similarity(u[None], with_zero[:, None], tokens[FINITE]),
        "limit": scale.equicorrelated.similarity_limit(u / (1 - shown), shown),
        "half_way": half_way,
        "width": scale.equicorrelated.transition_width(with_zero[:, None], n[None]),
        "best": best,
        "exact_at_some": similarity(some, shown, spec.explicit), **_softmaxes(spec, some / (1 - shown)),
    }  # fmt: skip
    return {name: np.asarray(value) for name, value in data.items()}


def _softmaxes(spec: Spec, gamma: np.ndarray) -> dict[str, np.ndarray]:
    """Means over outputs of softmax on explicit vectors: (γ,) for exact and (draw, γ) for random tokens."""
    n, rho = spec.explicit, spec.shown
    key = jax.random.fold_in(jax.random.key(spec.seed), 0)

    def tokens(g: jax.Array) -> jax.Array:
        """Tokens √ρ e + √(1 − ρ) g with directions g across e."""
        return jnp.concatenate([(1 - rho) ** 0.5 * g, jnp.full((n, 1), rho**0.5)], axis=1)

    random = []
    for index in range(spec.draws):  # inner products ρ ± (1 − ρ)/√d
        g = jax.random.normal(jax.random.fold_in(key, index), (n, spec.random_dim))
        x = tokens(g / jnp.linalg.norm(g, axis=1, keepdims=True))
        random.append([_means(x, each)[0] for each in gamma])
    exact = tokens(jnp.eye(n))
    similarity, inner = np.array([_means(exact, each) for each in gamma]).T
    return {"explicit_similarity": similarity, "explicit_inner": inner, "random_similarity": np.array(random)}


@jax.jit
def _means(x: jax.Array, gamma: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and inner product over all pairs of different tokens: from the length of the sum of the outputs."""
    n = x.shape[0]
    out = jax.nn.softmax(gamma * np.log(n) * (x @ x.T), axis=1) @ x
    square = (out * out).sum(1)
    unit, total = (out / jnp.sqrt(square)[:, None]).sum(0), out.sum(0)
    return (unit @ unit - n) / (n * (n - 1)), (total @ total - square.sum()) / (n * (n - 1))


def plot(data: Data) -> Figure:
    """The step for several n and for several ρ; its place and its width against n."""
    drawing, (by_tokens, by_rho, middle, width) = style.figure(columns=2, rows=2)
    _plot_by_tokens(by_tokens, data)
    log_n, rho = np.log10(data["n"]), data["with_zero"]
    for index, color in enumerate(style.sequence(len(rho))):
        above = "colours: ρ, as above" if rho[index] == 0.5 else None
        by_rho.plot(data["u"], data["by_rho"][index], color=color, label=f"ρ = {rho[index]:g}")
        middle.plot(log_n, data["half_way"][index], color=color, label=above and f"half way down; {above}")
        width.plot(log_n, data["width"][index] * (1 - rho[index]), color=color, label=above)
    for u in (0.5, 1.0):
        style.reference(by_rho, x=u)
    middle.plot(log_n, data["best"], color=style.colour("published"), linestyle=style.DASHES[1],
                label="largest gradient of softmax, every ρ")  # fmt: skip
    style.reference(middle, y=1.0)
    width.plot(log_n, 1 / np.log(data["n"]), color=style.colour("reference"), linestyle=style.DASHES[1],
               label="1/log n")  # fmt: skip
    # Both lower panels have an axis in log log n.
    title, n = f"The same for other ρ, n = {_number(data['tokens'][FINITE])}", "n, number of tokens (axis in log log n)"
    style.panel(by_rho, "(1 − ρ)γ", "cosine of two outputs", title, legend="below", columns=4)
    style.panel(middle, n, "(1 − ρ)γ", "Place: the limit is reached like 1/log n", log="x", legend="upper right")
    style.panel(width, n, "width of the step in (1 − ρ)γ", "Width: falls like 1/log n", log="xy", legend="upper right")
    by_rho.set_ylim(-0.05, 1.05)
    middle.set_ylim(0.35, 1.7)
    powers = (1, 2, 3, 6, 10, 30, 100, 300)
    for ax in (middle, width):
        ax.set_xticks(powers, [f"$10^{{{p}}}$" for p in powers])
        ax.set_xticks([], minor=True)
    return drawing


def _plot_by_tokens(ax: Axes, data: Data) -> None:
    """The step in closed form for several n, its limit, and softmax on explicit and on random tokens."""
    rho, n, dim = float(data["shown"]), int(data["explicit"]), int(data["dim"])
    all_gamma, gamma = data["u"] / (1 - rho), data["some"] / (1 - rho)
    for index, color in enumerate(style.sequence(len(data["tokens"]))):
        label = f"n = {_number(data['tokens'][index])}"
        ax.plot(all_gamma, data["similarity"][index], color=color, label=label)
    ax.step(all_gamma, data["limit"], where="mid", color=style.colour("theory"), dashes=(3, 2), linewidth=1.2,
            label="limit")  # fmt: skip
    ax.plot(gamma, data["explicit_similarity"], "o", color=style.colour("measured"), label=f"softmax, n = {n}")
    ax.plot(gamma, data["random_similarity"].mean(0), "o", markerfacecolor="none", color=style.colour("published"),
            label=f"random tokens, n = {n}, d = {dim}")  # fmt: skip
    ax.set_ylim(rho - 0.09, 1.03)
    title = f"A step at γ = 2, ρ = {rho:g}"
    style.panel(ax, "γ, coefficient of log n in the logits", "cosine of two outputs", title, legend="below", columns=3)


def _number(n: float) -> str:
    """Numbers below 10 000 as they are, powers of two and of ten as powers."""
    power = np.log2(n)
    if n < 1e4 or np.isnan(n):
        return f"{n:g}"
    return "2" + f"{power:.0f}".translate(RAISED) if power == np.round(power) else f"1e{np.log10(n):.0f}"


def _beside_step(data: Data) -> Measured:
    """Cosines at n = 2²⁰ less their limits below and above the step, 1 and ρ; and softmax against the closed form."""
    rho = data["rho"]
    at = [int(np.argmin(np.abs(data["u"] - place))) for place in SIDES]
    below, above = data["by_rho"][1:, at].T
    exact = data["explicit_similarity"] - data["exact_at_some"]
    return Measured(
        np.concatenate([below - 1, above - rho]),
        where=[f"ρ = {each:g}, (1 − ρ)γ = {u:g}" for u in SIDES for each in rho],
        reads=[exact, rho, data["u"]],
        numbers={"vectors": int(data["explicit"]), "gap": np.abs(exact).max()},
    )


def _inner_product(data: Data) -> Measured:
    """Inner product of two outputs of n explicit vectors less ρ, times n."""
    count = int(data["explicit"])
    return Measured(
        count * (data["explicit_inner"] - float(data["shown"])),
        where=[f"(1 − ρ)γ = {u:.2g}" for u in data["some"]],
        reads=[data["some"]],
        numbers={"vectors": count, "rho": float(data["shown"])},
    )


MODEL = (
    r"unit tokens with all inner products $\rho$, logits $\gamma\log n\thinspace\langle x_i,x_j\rangle$, values "
    "the tokens"
)
ROWS = (
    published(
        "critical-below",
        r"For $n\to\infty$ outputs fall into one direction if $\gamma\lt1/(1-\rho)$, and stay as far apart as the "
        r"inputs if $\gamma$ is larger.",
        _beside_step,
        near(0, STEEP),
        formula=True,
        source="chen2026-theorem",
        place="abstract and theorem 2.1, as a caption and summaries restate it",
        hypotheses=rf"{MODEL}; here $n=2^{{20}}$ and $\rho\gt0$, our condition: at $\rho=0$ the place is $\gamma=1/2$",
        interval_from="our tolerance",
        note=r"cosine of two outputs less its limit, 1 and $\rho$; softmax on <vectors> vectors has the closed form's "
        "cosines to <gap:.0e>",
    ),
    law(
        "critical-inner-product",
        r"The inner product of two outputs, unlike their cosine, stays at $\rho$ at every $\gamma$.",
        _inner_product,
        near(0, 1),
        proof="proved",
        place="docs/critical_scaling.md",
        hypotheses=rf"{MODEL}; $n\to\infty$",
        interval_from="$1/n$ of $n$ explicit vectors",
        neighbours=["chen2026"],
        note=r"measured less $\rho=<rho:g>$, times $n=<vectors>$",
    ),
)
