"""What reaches the last token, and what gradient a value gets, by position in causal attention."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.ledger import Measured, at_least, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import attention

ABOUT = figure.About(
    title="By position: influence on the last token, and gradients of values",
    caption=(
        "Even causal attention. Left: the last row of the rollout ((1 − λ)I + λA)^L, λ = ½: the share of each token in "
        "the last one after L layers with skip connections. It is a U at few layers, and the first token has all of it "
        "in the end. Right: size of the gradient of each token's value, where the outputs' gradients are orthogonal "
        "and of one size, without a sink and with a first token that has the share s of every row."
    ),
    formula="((1 − λ)I + λA)^L;   ‖∂v_j‖ ∝ (Σ_i a_ij²)^½;   even: π/√6 at j = 1;   a sink: s√n",
    topic="masks",
    minutes={"smoke": 0.05, "quick": 0.1, "full": 0.5},
)
PAGE = "docs/sinks.md"
RATIO = 2.0  # pronounced: twice as much as even causal attention concentrates
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Tokens, layers of the rollout, and shares of a sink."""

    dtype: str = "float64"
    tokens: int = 1024
    depths: tuple[int, ...] = (2, 4, 8, 12, 24)
    shares: tuple[float, ...] = (0.0, 0.3, 0.6, 0.9)


PRESETS = {
    "smoke": Spec(tokens=64, depths=(2, 4, 12), shares=(0.0, 0.6)),
    "quick": Spec(),
    "full": Spec(tokens=4096),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """The last row of each rollout, and sizes of the values' gradients (share, token)."""
    even = np.tri(spec.tokens) / np.arange(1, spec.tokens + 1)[:, None]
    row, rows = np.eye(spec.tokens)[-1], []
    for depth in range(1, max(spec.depths) + 1):
        row = (row + row @ even) / 2
        if depth in spec.depths:
            rows.append(row)
    # Gradients of the values by automatic differentiation of P V. The outputs' are orthogonal and of one size, so that
    # squares of sums have no cross terms, which independent ones have 0 of on average.
    given = spec.tokens**0.5 * jax.random.orthogonal(jax.random.key(spec.seed), spec.tokens, dtype=spec.dtype)
    zero = jnp.zeros_like(given)

    def size(share: float) -> np.ndarray:
        weights = jnp.asarray((1 - share) * even + share * np.eye(1, spec.tokens))
        gradient = jax.vjp(lambda value: jnp.matmul(weights, value, precision="highest"), zero)[1](given)[0]
        return np.asarray(jnp.sqrt(jnp.mean(jnp.square(gradient), axis=1)))

    # The even weights are those of a layer without queries.
    layer = attention.AttentionSpec(d_model=4, causal=True)
    params = attention.init(jax.random.key(spec.seed), layer, dtype=spec.dtype)
    params = params._replace(query=0 * params.query)
    x = jax.random.normal(jax.random.key(1), (spec.tokens, 4), spec.dtype)
    of_layer = np.asarray(attention.attention_weights(params, x, layer))[0]
    return {
        "depths": np.array(spec.depths), "rollout": np.array(rows), "shares": np.array(spec.shares),
        "gradient": np.array([size(share) for share in spec.shares]),
        "layer_gap": np.abs(of_layer - even).max(),
    }  # fmt: skip


def plot(data: Data) -> Drawing:
    """The rollout's last row, and gradients of values, against the position."""
    drawing, (rollout, gradient) = style.figure(columns=2, width=5.4)
    place = np.arange(1, data["rollout"].shape[1] + 1)
    for depth, row, color in zip(data["depths"], data["rollout"], style.sequence(len(data["depths"])), strict=True):
        rollout.plot(place, row, color=color, label=f"L = {depth}")
    for share, row, color in zip(data["shares"], data["gradient"], style.sequence(len(data["shares"])), strict=True):
        gradient.plot(place, row, color=color, label=f"s = {share:g}")
    style.reference(gradient, y=float(np.pi / 6**0.5), text="π/√6")
    style.panel(
        rollout, "position of a token", "its share in the last token", "Rollout", log="y", legend="below", columns=5
    )
    style.panel(
        gradient,
        "position of a token",
        "size of its value's gradient",
        "Gradients",
        log="xy",
        legend="below",
        columns=4,
    )
    return drawing


def _ends(data: Data) -> Measured:
    """The share of depths at which the first and the last token both have more of the last one than the middle."""
    rows, depths = data["rollout"], data["depths"]
    tokens = rows.shape[1]
    ends = np.minimum(rows[:, 0], rows[:, -1]) > rows[:, tokens // 2]
    return Measured(
        ends.mean(),
        reads=[rows, data["layer_gap"]],
        numbers={
            "tokens": tokens,
            "first": rows[-1, 0],
            "deepest": depths[-1],
            "depths": ", ".join(f"{depth}" for depth in depths),
            "without": ", ".join(f"{depth}" for depth in depths[~ends]) or "none",
        },
    )


def _concentration(data: Data) -> Measured:
    """Gradient of the first value over the middle one's with a sink, over the same without one."""
    gradient, shares = data["gradient"], data["shares"]
    tokens, with_sink = gradient.shape[1], shares > 0
    over_middle = gradient[:, 0] / gradient[:, tokens // 2]
    return Measured(
        (over_middle / over_middle[0])[with_sink],
        where=[f"s = {share:g}" for share in shares[with_sink]],
        numbers={"tokens": tokens, "without": over_middle[0]},
    )


def _first_gradient(data: Data) -> Measured:
    """Gradient of the first value over √Σ_i a_i1², and that over its limit."""
    shares, tokens = data["shares"], data["gradient"].shape[1]
    place = np.arange(1, tokens + 1.0)
    exact = np.sqrt(np.sum(((1 - shares[:, None]) / place + shares[:, None]) ** 2, axis=1))
    limit = np.where(shares > 0, shares * np.sqrt(tokens), np.sqrt(np.sum(place**-2)))
    first = data["gradient"][:, 0]
    names = [f"s = {share:g}" for share in shares]
    return Measured(
        np.append(first / exact, exact / limit),
        where=[*names, *(f"limit, {name}" for name in names)],
    )


ROWS = (
    published(
        "rollout-u",
        "At finite depth causal masking and residual connections induce broad, often U-shaped profiles of influence.",
        _ends,
        at_least(0.5),
        formula=True,
        source="herasimchyk2026",
        place="abstract",
        hypotheses=r"even causal attention of <tokens> tokens, the last row of $((1-\lambda)I+\lambda A)^{L}$, "
        r"$\lambda=\frac{1}{2}$",
        after_result=True,
        interval_from="our reading of often, made when the shares were known: at half of the depths or more; U: both "
        "ends above the middle",
        note="measured: the share of the depths $L$ of <depths> that have a U; without one: <without>; the last token "
        r"keeps $(1-\lambda+\lambda/n)^{L}$, and the first has <first:.2g> at $L=<deepest>$",
    ),
    published(
        "rollout-first",
        "Residual connections prevent the collapse of cumulative attention onto the first token at infinite depth "
        "(first version); they change it fundamentally (second version).",
        lambda data: Measured(
            data["rollout"][-1, 0], numbers={"depth": data["depths"][-1], "tokens": data["rollout"].shape[1]}
        ),
        at_most(0.5),
        formula=True,
        source="herasimchyk2026",
        place="abstracts of both versions",
        hypotheses=r"even causal attention of <tokens> tokens, the last row of $((1-\lambda)I+\lambda A)^{L}$, "
        r"$\lambda=\frac{1}{2}$, $L=<depth>$",
        after_result=True,
        interval_from="our reading: the first token has less than half; chosen when the share was known",
        elsewhere=r"under realistic conditions, says the first version, which we do not know; with one $\lambda$ in "
        r"all layers the other tokens together keep a multiple of $(1-\lambda/2)^{L}$, so that the first takes all: "
        r"slower than without, where $\lambda=1$",
        note="measured: share of the first token",
    ),
    published(
        "gradient-sink",
        "Under a causal mask attention sinks can induce a pronounced concentration of gradient.",
        _concentration,
        at_least(RATIO),
        formula=True,
        needs="some",
        source="chen2026sinks",
        place="abstract",
        hypotheses="<tokens> tokens, the share $s$ of every row on the first, the rest even; orthogonal "
        "gradients of the outputs, all of one size",
        interval_from="pronounced: twice as much as without a sink, our choice",
        note="measured: gradient of the first token's value over the middle one's, over the same without a sink, "
        "which is <without:.2g>: the mask alone concentrates too",
    ),
    law(
        "gradient-sink-size",
        r"The gradient of the first value is $\sqrt{\sum_ia_{i1}^{2}}$ times an output's: $\pi/\sqrt{6}$ in long even "
        r"causal attention, and about $s\sqrt{n}$ with a sink of weight $s$.",
        _first_gradient,
        near(1, 0.05),
        proof="proved",
        place=PAGE,
        neighbours=["chen2026sinks"],
        hypotheses="gradients of the outputs independent, of mean 0 and of one size; here orthogonal, as these are on "
        "average",
        interval_from="our tolerance: 5 %",
        note=r"measured over $\sqrt{\sum_ia_{i1}^{2}}$, and that over the limit",
    ),
)
