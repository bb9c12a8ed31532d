"""Algebra of the notes on the collapse proof, line by line: layer, expansion of the scores, norms, and γ."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from matplotlib.figure import Figure as Drawing

from experiments.ledger import Measured, at_most, near, published
from experiments.lib import figure, style
from rc_jax import attention, collapse, network

ABOUT = figure.About(
    title="The notes on the collapse proof, line by line",
    caption=(
        "First: relative error of lines of algebra, over random layers of as many features as tokens (points: median "
        "and largest). The notes' expansion of the scores lacks the factor Rᵀ in one term and 1/√d in another; with "
        "both it is exact, and so is what they conclude from it. Second: the last bound of their section in the "
        "composite norm, measured over bound, against the size of the tokens. Third: the γ that makes one factor of "
        "the bound exact, for one weight matrix on tokens of many sizes and kinds; the notes' bound needs a constant "
        "above it."
    ),
    formula="A = (1xᵀ + R)(W_QK/√d)(1xᵀ + R)ᵀ + 1b_QKᵀ(1xᵀ + R)ᵀ/√d;   P = softmax(R W_QK Rᵀ/√d + 1rᵀ)",
    topic="collapse",
    minutes={"smoke": 0.05, "quick": 0.1, "full": 0.5},
)
LINES = ("layer", "scores", "heads", "printed", "completed", "conclusion", "bias")
LABELS = ("a head with biases", "scores without row terms", "sum over heads", "expansion, as printed",
          "expansion, completed", "P of the residual", "residual and $b_O$")  # fmt: skip
LIMIT = 1.256  # the lemma's condition on D
Arrays = dict[str, np.ndarray]


class Spec(figure.Spec):
    """Random layers of `width` tokens and features, sizes of tokens, and tokens on which γ is measured."""

    dtype: str = "float64"
    width: int = 6
    heads: int = 2
    layers: int = 200
    sizes: int = 12
    tokens: int = 48


PRESETS = {
    "smoke": Spec(width=4, layers=12, sizes=4, tokens=6),
    "quick": Spec(),
    "full": Spec(layers=5000, sizes=24, tokens=1000),
}


def compute(spec: Spec) -> Arrays:
    """Errors of every line by layer; the last bound and the cubic one by size; γ by tokens."""
    rng = np.random.default_rng(spec.seed)
    errors = [_lines(rng, spec) for _ in range(spec.layers)]
    data = {line: np.array([each[line] for each in errors]) for line in LINES}
    size = np.geomspace(0.02, 1.0, spec.sizes)
    bounds = np.array([[_last_bound(rng, spec, each) for _ in range(spec.layers)] for each in size])
    return data | {
        "size": size, "ratio": bounds[..., 0], "move": bounds[..., 1], "cubic": bounds[..., 2],
        "gamma": _gamma(rng, spec), "width": np.array(float(spec.width)),
    }  # fmt: skip


def _lines(rng: np.random.Generator, spec: Spec) -> dict[str, float]:
    """Relative errors of the notes' lines for one layer with all four biases, against the package's layer."""
    n, h, k = spec.width, spec.heads, spec.width // spec.heads
    layer = attention.AttentionSpec(d_model=n, heads=h, bias=True)
    shapes = {"query": (h, n, k), "key": (h, n, k), "value": (h, n, k), "output": (h, k, n), "query_bias": (h, k),
              "key_bias": (h, k), "value_bias": (h, k), "output_bias": (n,)}  # fmt: skip
    part = {name: rng.normal(size=shape) / n**0.5 for name, shape in shapes.items()}
    arrays = [jnp.asarray(part[name]) for name in shapes]
    params = attention.AttentionParams(arrays[0], arrays[1], arrays[2], arrays[3])._replace(
        query_bias=arrays[4], key_bias=arrays[5], value_bias=arrays[6], output_bias=arrays[7]
    )
    x = rng.normal(size=(n, n))
    out, rows = (np.asarray(each) for each in _applied(params, jnp.asarray(x), layer))
    centre = x.mean(axis=0)
    rest = x - centre
    one = np.ones(n)

    # by head: W_QK and b_QK = W_K b_Q, over √d; the scores that are left after softmax's freedom in every row
    weight = part["query"] @ part["key"].transpose(0, 2, 1) / k**0.5
    bias = np.einsum("hdk,hk->hd", part["key"], part["query_bias"]) / k**0.5
    scores = x @ weight @ x.T + np.einsum("n,hd,md->hnm", one, bias, x)
    full = np.einsum("hnk,hmk->hnm", x @ part["query"] + part["query_bias"][:, None],
                     x @ part["key"] + part["key_bias"][:, None]) / k**0.5  # fmt: skip
    first = x @ weight @ centre + (bias @ centre)[:, None]
    last = np.einsum("n,hd,md->hnm", one, bias, rest)
    middle = (np.outer(one, centre) + rest) @ weight
    printed, completed = (first[..., None] + each + last for each in (middle, middle @ rest.T))
    r = np.einsum("nd,hed,e->hn", rest, weight, centre) + bias @ rest.T
    concluded = scipy.special.softmax(rest @ weight @ rest.T + r[:, None], axis=-1)

    # heads: joined along features times W_O stacked, against the sum of P X W_h and one bias
    values = rows @ (x @ part["value"]) + part["value_bias"][:, None]
    single = rows @ x @ part["value"] + np.einsum("n,hk->hnk", one, part["value_bias"])
    joined = np.concatenate(list(values), axis=-1) @ np.concatenate(list(part["output"])) + part["output_bias"]
    summed = (rows @ x @ (part["value"] @ part["output"])).sum(axis=0)
    constant = np.einsum("hk,hkd->d", part["value_bias"], part["output"]) + part["output_bias"]
    residuals = [np.asarray(collapse.residual(jnp.asarray(each))) for each in (out, summed)]
    return {
        "layer": _apart(joined, out) + _apart(single, values),
        "scores": _apart(scipy.special.softmax(scores, axis=-1), rows)
        + _apart(scipy.special.softmax(full, axis=-1), rows),
        "heads": _apart(summed + constant, out),
        "printed": _apart(printed, scores),
        "completed": _apart(completed, scores),
        "conclusion": _apart(concluded, rows),
        "bias": _apart(*residuals),
    }


@functools.partial(jax.jit, static_argnames="layer")
def _applied(
    params: attention.AttentionParams, x: jax.Array, layer: attention.AttentionSpec
) -> tuple[jax.Array, jax.Array]:
    """The output of a layer and its attention weights."""
    return attention.attend(params, x, layer), attention.attention_weights(params, x, layer)


def _apart(left: np.ndarray, right: np.ndarray) -> float:
    """Largest difference over largest entry."""
    return float(np.abs(left - right).max() / np.abs(right).max())


def _norm(x: np.ndarray) -> float:
    """‖X‖_{1,∞} = √(‖X‖₁ ‖X‖_∞), for vectors as columns too."""
    return float(np.sqrt(np.abs(x).sum(axis=0).max() * np.abs(x).sum(axis=1).max()))


def _last_bound(rng: np.random.Generator, spec: Spec, size: float) -> tuple[float, float, float]:
    """In the composite norm: ‖R'‖ over 2√(‖D1‖₁‖D1‖_∞) ‖R‖ ‖W_V‖; the largest D; ‖R'‖ over the cubic bound.

    R' is about 1r'ᵀ. The cubic bound is 4γ‖W_QK‖₁ ‖W_V‖ ‖R‖³/√d with the constant γ = √n; n tokens, n features.
    """
    n = spec.width
    x, weight, value = size * rng.normal(size=(n, n)), rng.normal(size=(n, n)), rng.normal(size=(n, n))
    rest = x - x.mean(axis=0)
    moved = rest @ weight @ rest.T / n**0.5
    shared = rest @ weight.T @ x.mean(axis=0) / n**0.5
    base = scipy.special.softmax(shared)
    after = (scipy.special.softmax(moved + shared, axis=-1) - base) @ rest @ value
    move = np.ptp(moved, axis=1)
    columns = np.abs(weight).sum(axis=0).max()
    cubic = 4 * n**0.5 * columns * _norm(value) * _norm(rest) ** 3 / n**0.5
    return (
        _norm(after) / (2 * _norm(move[:, None]) * _norm(rest) * _norm(value)),
        float(move.max()),
        _norm(after) / cubic,
    )


def _gamma(rng: np.random.Generator, spec: Spec) -> np.ndarray:
    """γ that makes the notes' bound of one layer exact in its factor D: one weight matrix, many sets of tokens."""
    n = spec.width
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=n), depth=1)
    params = network.random_layers(jax.random.key(spec.seed), stack)
    power = rng.uniform(0, 3, size=(spec.tokens, 1, 1))  # how unequal the sizes of tokens are
    x = 0.1 * rng.normal(size=(spec.tokens, n, n)) * np.arange(1, n + 1)[:, None] ** -power
    one = functools.partial(collapse.measured_gamma, params, spec=stack)
    return np.asarray(jax.jit(lambda every: jax.lax.map(lambda each: one(each)[0], every))(jnp.asarray(x)))


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Errors by line; the last bound by size; γ."""
    drawing, (lines, bound, gamma) = style.figure(columns=3, width=4.8, height=4.2)
    floor = 1e-17
    for index, (line, label) in enumerate(zip(LINES, LABELS, strict=True)):
        values = np.maximum(data[line], floor)
        color = style.colour("published" if line == "printed" else "measured")
        lines.plot([np.median(values), values.max()], [index] * 2, "o-", color=color)
        lines.annotate(label, (3e-17, index + 0.15), fontsize=9)
    lines.set_xlim(floor, 1e3)
    lines.set_ylim(-0.5, len(LINES))
    lines.set_yticks([])
    style.panel(lines, "relative error", "", "Lines of algebra", log="x")
    low, middle, high = np.quantile(data["ratio"], (0, 0.5, 1), axis=1)
    style.bands(bound, data["size"], low, middle, high)
    style.reference(bound, y=1.0, text="the bound")
    style.panel(bound, "size of an entry of X", "measured/bound", "Last bound, composite norm", log="xy")
    order = np.sort(data["gamma"])
    gamma.plot(np.arange(1, order.size + 1) / order.size, order, "o", color=style.colour("measured"), markersize=3)
    style.panel(gamma, "share of token sets", "γ", "γ for one weight matrix")
    return drawing


def _largest(*lines: str):
    """The largest error of some lines over all layers."""
    return lambda data: Measured([data[line].max() for line in lines], where=[LABELS[LINES.index(e)] for e in lines])


def _under_condition(data: Mapping[str, np.ndarray], bound: str = "ratio") -> Measured:
    """The largest ratio of a bound where the lemma's condition holds."""
    inside = data["move"] <= LIMIT
    return Measured(
        data[bound][inside].max(initial=-np.inf), reads=[data[bound], data["move"]],
        numbers={"cases": int(inside.sum())},
    )  # fmt: skip


def _constant(data: Mapping[str, np.ndarray]) -> Measured:
    """The cubic bound with a constant γ, and the range of the γ that makes its factor exact."""
    found, gamma = _under_condition(data, "cubic"), data["gamma"]
    numbers = {**found.numbers, "low": gamma.min(), "high": gamma.max(), "sets": gamma.size}
    return dataclasses.replace(found, reads=[*found.reads, gamma], numbers=numbers)


def _expansion(data: Mapping[str, np.ndarray]) -> Measured:
    """The largest error of the printed expansion; in the note that of the completed one."""
    return Measured(data["printed"].max(), reads=[data["completed"]], numbers={"completed": data["completed"].max()})


ROUNDING = 1e-11
EXACT = "the formula is exact; rounding of float64"
notes = functools.partial(published, source="proof-notes", formula=True)
of_layer = functools.partial(
    notes, hypotheses="random layers of two heads with all biases, as many features as tokens", interval_from=EXACT
)
ONE_HEAD = "the notes' section on one head in one layer"
ROWS = (
    of_layer(
        "notes-layer",
        r"A head gives $P_h\thinspace X\thinspace W_{V,h}+1b_{V,h}^{\top}$, and heads that are joined and multiplied "
        r"by $W_O$ give $\sum_h\thinspace P_h\thinspace X\thinspace W_h+1b_O^{\top}$.",
        _largest("layer", "heads"),
        near(0, ROUNDING),
        place="definition of a layer",
        note=r"identity; largest error over the size of the output; the constant of the sum is $b_O$ and $\sum_h "
        r"W_{O,h}^{\top}\thinspace b_{V,h}$ together, both of which the notes call $b_O$",
    ),
    of_layer(
        "notes-scores",
        r"Softmax by rows leaves of all biases the term $1b_Q^{\top}\thinspace W_K^{\top}\thinspace X^{\top}$ alone.",
        _largest("scores"),
        near(0, ROUNDING),
        place="definition of a layer, second form of $P_h$",
        note=r"identity; largest error of $P$",
    ),
    of_layer(
        "notes-output-bias",
        "The bias $b_O$ does not change the residual.",
        _largest("bias"),
        near(0, ROUNDING),
        place="below the definition of the residual",
        note="identity; largest difference of residuals about the mean, over their size; it holds for any minimiser",
    ),
    of_layer(
        "notes-expansion",
        r"The scores expand as $A=(\ldots)1^{\top}+(1x^{\top}+R)\thinspace W_{QK}/\sqrt{d}+1b_{QK}^{\top}\thinspace "
        r"R^{\top}$.",
        _expansion,
        near(0, ROUNDING),
        place=f"{ONE_HEAD}, expansion of the scores",
        note=r"the middle term has lost its last factor, $R^{\top}$, without which its shape is that of $A$ only where "
        r"$n=d$, as here, and the biases have lost $1/\sqrt{d}$; with both the error is <completed:.1e>, and the notes "
        "go on from the complete line (notes-conclusion)",
    ),
    of_layer(
        "notes-conclusion",
        r"The weights are $P=\mathrm{softmax}(R\thinspace W_{QK}\thinspace R^{\top}/\sqrt{d}+1r^{\top})$, "
        r"$r=R\thinspace "
        r"W_{QK}^{\top}\thinspace x/\sqrt{d}+R\thinspace b_{QK}/\sqrt{d}$.",
        _largest("conclusion"),
        near(0, ROUNDING),
        place=f"{ONE_HEAD}, $P$ by the residual",
        note="identity; largest error of $P$",
    ),
    notes(
        "notes-composite-norm",
        r"$\lVert R^{\prime}\rVert\leq2\sqrt{\lVert D1\rVert_1\lVert D1\rVert_{\infty}}\thinspace\lVert "
        r"R\rVert\thinspace\lVert W_V\rVert$ in the norm $\lVert \cdot\rVert_{1,\infty}$.",
        _under_condition,
        at_most(1 + ROUNDING),
        place=f"{ONE_HEAD}, last line",
        hypotheses=r"one head, no mask, every $D_{ii}\leq1.256$; $R^{\prime}$ about the notes' $r^{\prime}$",
        interval_from="the inequality is exact; rounding of float64",
        note="largest left/right of <cases> random layers; it follows by the mended step (bound-repair)",
    ),
    notes(
        "notes-gamma",
        r"The residual of one head is at most $4\gamma\lVert W_{QK}\rVert_1\thinspace\lVert W_V\rVert\thinspace\lVert "
        r"\mathrm{res}(X)\rVert^{3}/\sqrt{d}$ with a constant $\gamma$.",
        _constant,
        at_most(1 + ROUNDING),
        place=f"{ONE_HEAD}, the bound that it begins with",
        hypotheses=r"one head, no mask, every $D_{ii}\leq1.256$; $\gamma=\sqrt{\min(n,d)}$, which depends on neither "
        r"tokens nor weights; the norm is $\lVert \cdot\rVert_{1,\infty}$; residuals about the notes' $r^{\prime}$ and "
        "the mean",
        interval_from="the inequality is exact; rounding of float64",
        note=r"largest left/right of <cases> random layers; the notes name no $\gamma$, and its source lets it depend "
        r"on the attention weights; the one that makes $\sqrt{\lVert D1\rVert_1\lVert "
        r"D1\rVert_{\infty}}=2\gamma\lVert W_{QK}\rVert_1\lVert R\rVert^{2}/\sqrt{d}$ is no constant: on <sets> sets "
        "of tokens under one weight matrix it runs from <low:.2f> to <high:.2f>; with that one, measured in every "
        "layer, the bound holds as well (bound-repair)",
    ),
)
