"""What a multi-head layer costs: its multiplications, XLA's own count, and the time of each part."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.figures._timing import quartiles
from experiments.ledger import Measured, at_least, near, published
from experiments.lib import figure, style
from rc_jax import attention
from rc_jax.attention.specification import assemble

PAPER, NOTES = "vaswani2017", "study-notes"
ABOUT = figure.About(
    title="Multi-head attention: multiplications and time",
    caption=(
        "First: time of each part of a layer against the number of tokens (medians and quartiles of calls in turns). "
        "Second: the part that is quadratic over the projections, in time; the dotted line is the ratio of "
        "multiplications, s/(2h). Third: one head against many, in time and in XLA's count. Times are this machine's, "
        "in float32."
    ),
    formula="2 s² h for QKᵀ and PV + 4 s h² for projections, equal at s = 2h;   + s h + a s (4s − 1) other operations",
    topic="layer",
    minutes={"smoke": 0.1, "quick": 0.4, "full": 2.0},
    alone=True,
)
PUBLISHED = (256, 768, 12)  # tokens, width, heads of the notes' count
BASE = (512, 8)  # width and heads of the base model of Vaswani et al. 2017
WIDER = 4  # a feed-forward part is four times as wide as the model, there and in BERT, whose sizes the notes take
PARTS = ("projections", "scores", "softmax", "values")
ALIKE = 0.1  # of similar costs
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Width and heads of the layer, numbers of tokens, and seconds of timing at each."""

    d_model: int = 768
    heads: int = 12
    tokens: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    seconds: float = 1.0
    least: int = 3


PRESETS = {
    "smoke": Spec(d_model=32, heads=4, tokens=(16, 128), seconds=0.02),
    "quick": Spec(),
    "full": Spec(tokens=(64, 128, 256, 512, 1024, 2048, 4096), seconds=8.0, least=7),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Quartiles of seconds by part and number of tokens, of whole layers with many heads and with one; XLA's counts."""
    random, times = np.random.default_rng(spec.seed), {}
    for tokens in spec.tokens:
        for name, row in quartiles(_calls(spec, tokens, random), spec.seconds, spec.least).items():
            times.setdefault(name, []).append(row)
    flops, flops_one = ([_flops(n, spec.d_model, heads) for n in spec.tokens] for heads in (spec.heads, 1))
    return {
        "tokens": np.array(spec.tokens), "shape": np.array([spec.d_model, spec.heads]),
        "published": np.array(_flops(*PUBLISHED), float), "block": block(*PUBLISHED), "rest": rest(PUBLISHED[0]),
        "base": np.array(query_shape(*BASE), float),
        "flops": np.array(flops, float), "flops_one": np.array(flops_one, float),
        **{f"seconds_{name}": np.array(rows) for name, rows in times.items()},
    }  # fmt: skip


def _calls(spec: Spec, tokens: int, random: np.random.Generator) -> dict:
    """The parts of a layer on what they are given, and whole layers with many heads and with one."""
    d, a = spec.d_model, spec.heads
    x = jnp.asarray(random.normal(size=(tokens, d)), jnp.float32)
    query, key, value = (jnp.asarray(random.normal(size=(a, tokens, d // a)), jnp.float32) for _ in range(3))
    dense = tuple(jnp.asarray(random.normal(size=(d, d)), jnp.float32) for _ in range(4))
    many, one = (attention.AttentionSpec(d_model=d, heads=heads) for heads in (a, 1))
    params = attention.init(jax.random.key(spec.seed), many)
    axes = {"query": 1, "key": 1, "value": 1, "output": 0}
    whole = {name: jnp.concatenate(list(getattr(params, name)), axis=axis)[None] for name, axis in axes.items()}
    merged = assemble(whole)
    matmul = partial(jnp.matmul, precision="highest")
    # Three products from one input, and one from another: their sum keeps all four.
    project = jax.jit(lambda x, w: sum((matmul(x, each) for each in w[:3]), matmul(x, w[3])))
    scores = jax.jit(lambda q, k: matmul(q, k.mT))
    softmax, values = jax.jit(partial(jax.nn.softmax, axis=-1)), jax.jit(matmul)
    rows = scores(query, key)
    return {
        "projections": partial(project, x, dense), "scores": partial(scores, query, key),
        "softmax": partial(softmax, rows), "values": partial(values, softmax(rows), value),
        "layer": partial(attention.attend, params, x, many), "one_head": partial(attention.attend, merged, x, one),
    }  # fmt: skip


def _flops(tokens: int, d_model: int, heads: int) -> float:
    """XLA's cost analysis of the compiled layer."""
    spec = attention.AttentionSpec(d_model=d_model, heads=heads)
    params = jax.eval_shape(lambda: attention.init(jax.random.key(0), spec, dtype="float32"))
    return _counted(lambda params, x: attention.attend(params, x, spec), params, (tokens, d_model))


def _counted(function: Callable, *arguments: Any) -> float:
    """XLA's operations of a function of float32 arrays, given by their shapes or as they are."""
    given = [jax.ShapeDtypeStruct(each, jnp.float32) if type(each) is tuple else each for each in arguments]
    return float((jax.jit(function).lower(*given).compile().cost_analysis() or {}).get("flops", np.nan))


def block(tokens: int, d_model: int, heads: int) -> np.ndarray:
    """Multiplications of a transformer block, half of XLA's operations: QKᵀ and PV; projections; feed-forward."""
    s, h, a = tokens, d_model, heads
    head, square = (a, s, h // a), (a, s, s)
    scores = _counted(lambda q, k: jnp.einsum("hik,hjk->hij", q, k), head, head)
    values = _counted(lambda p, v: jnp.einsum("hij,hjk->hik", p, v), square, head)
    projection = _counted(jnp.matmul, (s, h), (h, h))
    mlp = _counted(lambda x, up, down: x @ up @ down, (s, h), (h, WIDER * h), (WIDER * h, h))
    return np.array([scores + values, 4 * projection, mlp]) / 2


def rest(tokens: int) -> np.ndarray:
    """XLA's operations of dividing one head's scores by √d_k, and of plain softmax, exponentials apart."""

    def softmax(x: jax.Array) -> jax.Array:
        weights = jnp.exp(x)
        return weights / weights.sum(axis=1, keepdims=True)

    rows = (tokens, tokens)
    return np.array([_counted(lambda x: x * np.float32(0.125), rows), _counted(softmax, rows)])


def query_shape(d_model: int, heads: int) -> tuple[int, ...]:
    """The width and d_k of a layer of these sizes, from one head's W_Q."""
    spec = attention.AttentionSpec(d_model=d_model, heads=heads)
    return jax.eval_shape(lambda: attention.init(jax.random.key(0), spec)).query.shape[1:]


def plot(data: Data) -> Drawing:
    """Times; quadratic over projections; one head against many."""
    drawing, (times, ratio, heads) = style.figure(columns=3, width=5.2, height=4.6)
    s, (d, a) = data["tokens"], (int(each) for each in data["shape"])
    theory, middle = style.colour("theory"), {name: data[f"seconds_{name}"][:, 1] for name in (*PARTS, "layer")}
    for index, name in enumerate(PARTS):
        look = style.cycle(index)
        style.bands(times, s, *(1e3 * data[f"seconds_{name}"][:, :3].T), color=look["color"], marker=look["marker"],
                    label=name)  # fmt: skip
    times.plot(s, 1e3 * middle["layer"], "--", color=theory, label="whole layer")

    # The quadratic part over the projections, then one head against many.
    products = middle["scores"] + middle["values"]
    ratio.plot(s, products / middle["projections"], "o-", color=style.colour("measured"), label="QKᵀ and PV, time")
    ratio.plot(s, (products + middle["softmax"]) / middle["projections"], "s-", color=style.colour("mlp"),
               label="and softmax, time")  # fmt: skip
    ratio.plot(s, s / (2 * d), ":", color=theory, label="multiplications, s/(2h)")
    style.reference(ratio, y=1)
    style.reference(ratio, x=2 * d, text="2h")

    heads.plot(s, middle["layer"] / data["seconds_one_head"][:, 1], "o-", color=style.colour("measured"),
               label=f"time, {a} heads / 1 head")  # fmt: skip
    heads.plot(s, data["flops"] / data["flops_one"], "s", color=style.colour("corrected"), fillstyle="none",
               label="XLA's operations")  # fmt: skip
    many, one = ([attention.operations(tokens=int(n), d_model=d, heads=each) for n in s] for each in (a, 1))
    heads.plot(s, np.divide(many, one), ":", color=theory, label="operations, counted")
    for ax, y, title, log in (
        (times, "time (ms)", f"Parts of a layer, h = {d}, {a} heads", "xy"),
        (ratio, "quadratic part / projections", "Where the quadratic part passes", "xy"),
        (heads, f"{a} heads / 1 head", "Heads share the width", "x"),
    ):
        style.panel(ax, "s, number of tokens", y, title, log=log, base=2, legend="below", columns=2)
    return drawing


def _multiplications(data: Data) -> float:
    """XLA's operations of a compiled layer less projections, scale and softmax, halved."""
    n, h, heads = PUBLISHED
    others = attention.operations(tokens=n, d_model=h, heads=heads) - 2 * attention.multiplications(tokens=n, d_model=h)
    return (float(data["published"]) - others) / 2


def _scale_and_softmax(data: Data) -> Measured:
    """XLA's count over the formula, of the division and of softmax."""
    n = PUBLISHED[0]
    return Measured(
        data["rest"][[0, 1, 1]] / np.array([n * n, n * (2 * n - 1), n * n]),
        where=["division: s²", "softmax: s(2s − 1)", "softmax: about s²"],
    )


def _attention_over_feed_forward(data: Data) -> Measured:
    """Multiplications over those of the feed-forward part."""
    products, projections, mlp = data["block"]
    return Measured(
        np.array([products, products + projections]) / mlp,
        where=["QKᵀ and PV", "with projections"],
        numbers={"products": products / 1e8, "projections": projections / 1e8, "mlp": mlp / 1e8},
    )


def _heads_over_one(data: Data) -> Measured:
    """Ratio of XLA's operations with many heads and with one."""
    width, heads = data["shape"]
    return Measured(
        data["flops"] / data["flops_one"],
        where=[f"s = {each}" for each in data["tokens"]],
        numbers={"width": width, "heads": heads},
    )


costs = partial(published, source=NOTES, place="section on the cost of a transformer", formula=True)
TOKENS, WIDTH, HEADS = PUBLISHED
SIZES = f"$s={TOKENS}$, $h={WIDTH}$, {HEADS} heads"
ROWS = (
    costs(
        "multihead-count",
        r"$QK^{\top}$ and $PV$ take $12(256\cdot64\cdot256+256\cdot256\cdot64)$ multiplications, about $10^{8}$.",
        _multiplications,
        near(12 * 2 * 256 * 64 * 256, HEADS * TOKENS),
        hypotheses=SIZES,
        interval_from="the printed product, and one operation for each row of softmax",
        note="measured: XLA's operations of a compiled layer less projections, scale and softmax, halved",
    ),
    costs(
        "multihead-scale",
        r"For each head the division by $\sqrt{d_k}$ takes $s^{2}$ operations and softmax $s(2s-1)$, which is about "
        "$s^{2}$.",
        _scale_and_softmax,
        near(1, 0.01),
        needs="parts",
        hypotheses=f"$s={TOKENS}$; sums and divisions, without exponentials",
        interval_from="our tolerance for a count: one per cent",
        note="measured: XLA's count over the formula; $s(2s-1)$ is about $2s^{2}$",
    ),
    costs(
        "multihead-largest",
        "Multi-head attention is the part of a transformer with the most computation.",
        _attention_over_feed_forward,
        at_least(1),
        hypotheses=f"the notes' own {SIZES}; a feed-forward part of width ${WIDER}h$, as in Vaswani et al. 2017",
        interval_from="the largest part exceeds every other",
        note=r"measured: multiplications over those of the feed-forward part; $QK^{\top}$ and $PV$ "
        r"$<products:.1f>\cdot10^{8}$, projections $<projections:.1f>\cdot10^{8}$, feed-forward "
        r"$<mlp:.1f>\cdot10^{8}$; with projections attention is the largest from $s=2h$ on; the notes' count of "
        "$10^{8}$ itself stands",
    ),
    published(
        "multihead-width",
        "The paper that introduced the transformer takes $d_k=512$.",
        lambda data: data["base"][1],
        near(512, 0),
        source=NOTES,
        place="sections on scaled dot products and on the factor 1/√d_k",
        formula=True,
        hypotheses=r"$d_{\mathrm{model}}=512$ and 8 heads, the base model of Vaswani et al. 2017, section 3.2.2",
        interval_from="the printed number",
        note=r"512 is $d_{\mathrm{model}}$; with 8 heads $d_k$ is 64, as the paper prints; the notes' argument needs "
        "neither number",
    ),
    published(
        "multihead-heads",
        "Several heads of reduced width cost about as much as one of full width.",
        _heads_over_one,
        near(1, ALIKE),
        source=PAPER,
        place="section 3.2.2",
        formula=True,
        hypotheses="<heads> heads, $d=<width>$; the paper has 8 and 512",
        interval_from="our tolerance: a tenth",
        note="measured: ratio of XLA's operations",
    ),
)
