"""Kinds of attention weights: their effect on sparsity, on the size of the output and on collapse."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.figures._samples import draw
from experiments.figures.collapse import _weight_kinds as kinds
from experiments.ledger import Claim, at_least, law, near
from experiments.lib import figure, style
from experiments.lib.figure import About
from rc_jax import attention, sparsity

ABOUT = About(
    title="Ways to make weights of scores",
    caption=(
        "Random layers, tokens N(0, I). Sparsity belongs to the kernel: what a row is divided by cancels. The size of "
        "the output belongs to the norm: averages shrink as n^(−1/2) until n ≈ d, rows of Euclidean norm 1 keep it and "
        "then grow, a decay sees a fixed number of tokens. And collapse belongs to what all rows share: weights whose "
        "rows have different sums do not make tokens equal, but parallel, or leave one of them. Lines at the top are "
        "predictions without a free number, points simulations; below are medians over networks."
    ),
    formula="mean square of Σ_j a_j x_j = (γ E f'/ν)²/d + E f²/(n ν²),   a = f(s)/(n ν),  s ~ N(0, γ²)",
    topic="collapse",
    minutes={"smoke": 0.15, "quick": 0.5, "full": 15.0},
)

# Fixed before the first run: a residual has not collapsed while it is half of the tokens' size.
KEPT = np.log(0.5)
KEEPERS = ("signed", "relu²/n", "identity")


class Spec(figure.Spec):
    """Shape of the layers, numbers of tokens, depth of the networks, numbers of initialisations."""

    dtype: str = "float64"
    d_model: int = 64
    heads: int = 4
    lengths: tuple[int, ...] = (16, 64, 256, 512)
    compared: tuple[str, ...] = tuple(kinds.KINDS)
    maps: tuple[str, ...] = tuple(kinds.MAPS)
    layers: int = 16
    tokens: int = 32
    depth: int = 10
    count: int = 128


PRESETS = {
    "smoke": Spec(d_model=16, heads=2, lengths=(8, 16), layers=8, tokens=8, depth=4, count=16, maps=(),
                  compared=("softmax", "l2", "relu²/Σ", "relu²/n", "identity", "decay")),
    "quick": Spec(),
    "full": Spec(lengths=(16, 32, 64, 128, 256, 512, 1024, 2048), layers=64, depth=16, count=4096),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Sparsity of rows; root mean square of outputs by number of tokens; relative residuals by layer."""
    key = jax.random.key(spec.seed)
    data = {
        "kinds": np.array([*spec.compared, kinds.ONE_HEAD]),
        "lengths": np.array(spec.lengths),
        "depth": np.arange(spec.depth + 1),
    }
    # One layer at every number of tokens, then whole networks.
    rows = draw(_Layer(spec), jax.random.fold_in(key, 0), spec.layers, batch_size=2, progress=True)
    for name in ("square", "theory", "sparsity", "sparsity_theory", "sparsity_gap"):
        data |= {name: rows.mean[name]}
    data["sparsity_gap_error"] = rows.standard_error["sparsity_gap"]
    data |= {"row_names": np.array([*spec.compared, *spec.maps])}
    deep = draw(_Networks(spec), jax.random.fold_in(key, 1), spec.count, batch_size=32, progress=True)
    quantiles = deep.quantile((0.05, 0.5, 0.95))
    for name in ("residual", "line", "tokens"):
        data |= {name: quantiles[name]}
    return data | {"shape": np.array([spec.d_model, spec.heads, spec.count])}


def _those(group: Iterable[str], names: Iterable[str]) -> list[str]:
    """The kinds of a group that a preset looks at."""
    return [name for name in group if name in set(names)]


@dataclasses.dataclass(frozen=True)
class _Layer:
    """One random layer of every kind on the first n tokens, for every n: rows n(3/4 … 1), their S and their output."""

    spec: Spec

    def __call__(self, key: jax.Array) -> dict[str, jax.Array]:
        spec, most = self.spec, max(self.spec.lengths)
        x = jax.random.normal(jax.random.fold_in(key, 0), (most, spec.d_model), spec.dtype)
        layers = kinds.draw(jax.random.fold_in(key, 1), spec.d_model, spec.heads, spec.dtype)
        params, index = layers["softmax"][0], jnp.arange(most)  # values and outputs are those of every kind
        value = jnp.einsum("nd,hdk->hnk", x, params.value, precision="highest")

        def on(n: jax.Array) -> dict[str, jax.Array]:
            seen = jnp.broadcast_to((index < n)[None], (most, most)) | jnp.eye(most, dtype=bool)
            late = ((index < n) & (4 * index >= 3 * n)).astype(spec.dtype)
            late, count = late / jnp.sum(late), n.astype(spec.dtype)
            names = (*spec.compared, *spec.maps)
            kernels = [functools.partial(attention.attention_weights, layers[name][0], x, layers[name][1], mask=seen)
                       for name in names]  # fmt: skip

            def one(index: jax.Array) -> tuple[jax.Array, jax.Array]:
                weights = jax.lax.switch(index, kernels)
                out = jnp.einsum("hij,hjk,hkd->id", weights, value, params.output, precision="highest")
                s = jnp.mean(sparsity.sparsity(weights), axis=0) * jnp.sqrt(most / count)
                return jnp.sum(late * jnp.mean(jnp.square(out), axis=1)), jnp.sum(late * s)

            square, rows = jax.lax.map(one, jnp.arange(len(names)))  # a program for what follows the weights
            from_scores, predicted = (_those(group, spec.compared) for group in (kinds.FROM_SCORES, kinds.PREDICTED))
            closed = jnp.stack([kinds.predicted_sparsity(name, layers[name][0], x) for name in from_scores])
            theory = [kinds.predicted_square(name, layers[name][0], x, count) for name in predicted]
            return {
                "square": square[: len(spec.compared)],
                "theory": jnp.stack(theory),
                "sparsity": rows,
                "sparsity_theory": closed,
                "sparsity_gap": rows[jnp.array([names.index(name) for name in from_scores])] - closed,
            }

        by_length = jax.lax.map(on, jnp.array(spec.lengths))
        return {name: values.T if name in ("square", "theory") else values[-1] for name, values in by_length.items()}


@dataclasses.dataclass(frozen=True)
class _Networks:
    """One initialisation of pure attention of every kind: what is left that tells tokens apart, by layer."""

    spec: Spec

    def __call__(self, key: jax.Array) -> dict[str, jax.Array]:
        spec, deep = self.spec, [*self.spec.compared, kinds.ONE_HEAD]
        x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, spec.d_model), spec.dtype)

        def step(x: jax.Array, index: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            drawn = jax.random.fold_in(jax.random.fold_in(key, 1), index)
            layers = kinds.draw(drawn, spec.d_model, spec.heads, spec.dtype)
            out = []
            for one, name in zip(x, deep, strict=True):
                moved = attention.attend(layers[name][0], one, layers[name][1])
                size = jnp.maximum(jnp.max(jnp.abs(moved)), jnp.finfo(x.dtype).tiny)
                out.append(moved / size if name in kinds.HOMOGENEOUS else moved)
            return jnp.stack(out), jax.vmap(kinds.distances)(x)

        # What is left is measured before every layer, and after the last one.
        start = jnp.broadcast_to(x[None], (len(deep), *x.shape))
        seen = jax.lax.scan(step, start, jnp.arange(spec.depth + 1))[1]
        return {name: values.T for name, values in seen.items()}


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Sparsity by kind; size of the output against n; distance to equal and to parallel tokens by layer."""
    drawing, (rows, sizes, equal, line) = style.figure(columns=2, rows=2, width=6.4, height=4.6)
    names, at = [str(name) for name in data["row_names"]], np.arange(data["row_names"].size)
    closed = [names.index(name) for name in _those(kinds.FROM_SCORES, names)]
    rows.plot(data["sparsity_theory"], closed, "|", markersize=16, markeredgewidth=2, color=style.colour("theory"),
              label="closed form of the kernel")  # fmt: skip
    rows.plot(data["sparsity"], at, "o", color=style.colour("measured"), label="random layers")
    rows.set_yticks(at, names)
    rows.invert_yaxis()
    rows.set_xlim(0, 1.02)
    title = "Sparsity: the norm of the row cancels"
    style.panel(rows, "S of a row (smaller is sparser)", "", title, legend="below", columns=2)

    predicted = _those(kinds.PREDICTED, data["kinds"])
    for index, name in enumerate(str(name) for name in data["kinds"]):
        # The second round of colours is dashed and hollow.
        hollow, n = index >= len(style.ORDER), data["lengths"]
        look: dict[str, Any] = style.cycle(index) | {
            "linestyle": style.DASHES[int(hollow)],
            "fillstyle": ("full", "none")[hollow],
        }
        if name in predicted:
            theory = np.sqrt(data["theory"][predicted.index(name)])
            sizes.plot(n, theory, color=look["color"], linestyle=look["linestyle"], linewidth=1.2)
        if name in kinds.KINDS:
            points: dict[str, Any] = look | {"linestyle": "none", "label": name}
            sizes.plot(n, np.sqrt(data["square"][index]), **points)
        for panel, what in ((equal, "residual"), (line, "line")):
            panel.plot(data["depth"], data[what][1, index], label=name, linewidth=1.3, markersize=4, **look)
    title = "Size of the output (lines: predicted)"
    style.panel(sizes, "n, tokens", "root mean square of the output", title, log="y", legend="right")
    sizes.set_xscale("log", base=2)
    style.panel(equal, "layer", "log ‖res(X)‖/‖X‖ (nats)", "Distance to equal tokens (medians)")
    title = "Distance to parallel tokens: rank 1 (medians)"
    style.panel(line, "layer", "log distance/‖X‖ (nats)", title, legend="right")
    for panel in (equal, line):
        panel.set_ylim(-32, 2)  # float64 ends at −36
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing


def claims(data: Mapping[str, np.ndarray]) -> list[Claim]:
    """Sparsity of the kernel; sizes and exponents; what collapses, and to what."""
    return [*_claims_of_rows(data), *_claims_of_depth(data)]


LAYER = "tokens N(0, I), Gaussian weights, d = {} and {} heads"


def _claims_of_rows(data: Mapping[str, np.ndarray]) -> list[Claim]:
    names, lengths = [str(name) for name in data["kinds"]], data["lengths"]
    from_scores = _those(kinds.FROM_SCORES, names)
    layer, before = LAYER.format(*data["shape"][:2]), "our tolerance: "
    return [
        law("weights-sparsity-kernel", "The sparsity S of a row is that of the kernel f on scores N(0, γ²), whatever "
            "the row is divided by.", data["sparsity_gap"], near(0, 0.02), proof="derived", where=from_scores,
            place="docs/weights.md, Sparsity: the norm cancels", neighbours=["su2023concentrate", "hurley2009"],
            hypotheses=f"{layer}, n = {lengths[-1]}", standard_error=data["sparsity_gap_error"],
            interval_from=before + "0.02", note="measured less closed form; finite rows are off by order 1/n"),
    ]  # fmt: skip


def _claims_of_depth(data: Mapping[str, np.ndarray]) -> list[Claim]:
    names = [str(name) for name in data["kinds"]]
    at = {name: names.index(name) for name in names}
    last = data["residual"][1, :, -1]
    layer, before = LAYER.format(*data["shape"][:2]), "our tolerance: "
    keepers = _those(KEEPERS, names)
    measured = functools.partial(law, proof="measured", place="docs/weights.md, Collapse")
    return [
        measured("weights-no-collapse", "With signed weights, with max(s, 0)²/n and with s/n as weights, whose rows "
                 "have different sums, tokens do not become equal.", np.exp(last[[at[name] for name in keepers]]),
                 at_least(np.exp(KEPT)), where=keepers, hypotheses=layer,
                 interval_from=before + "‖res‖ at least half of ‖X‖", note="median of ‖res‖/‖X‖ at the last layer"),
        measured("weights-mean-one-token", "With max(s, 0)²/n as weights all tokens but one go to zero.",
                 float(data["tokens"][1, at["relu²/n"], -1]), (0, 1.5),
                 hypotheses=f"{layer}; networks that have not died", interval_from=before + "1.5 tokens",
                 note="(Σ|x|²)²/Σ|x|⁴ over tokens, median at the last layer"),
    ]  # fmt: skip
