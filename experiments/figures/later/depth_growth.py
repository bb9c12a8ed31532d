"""How size and gradient grow with depth at initialisation: what four sources say, each at its own network."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.figures._replicates import mean_and_error
from experiments.figures.later import _depth_growth as growth
from experiments.figures.later._depth_growth import NETWORKS, Spec
from experiments.ledger import Measured, at_least, at_most, near, published
from experiments.lib import figure, style

ABOUT = figure.About(
    title="Growth with depth before training",
    caption=(
        "Encoders with skips and GELU MLPs at a Xavier initialisation, independent Gaussian tokens, medians over "
        "initialisations. First: variance of the entries of a token by layer, with LayerNorm before the branches, "
        "the same times 1/√l, elementwise tanh in its place, or nothing. Aligned: each branch adds its normalised "
        "input. Second: squared norm of the Jacobian from the tokens to a layer, over the number of entries. Third: "
        "gradient of the four matrices of attention over that of the last layer; dotted: 1/√l. Fourth: variance "
        "and covariance of the outputs of one head, measured over predicted."
    ),
    formula="x ← x + branch(LN(x)):  σ² ~ l where branches are independent,  l² where they align,  e^{cl} without LN",
    topic="later",
    minutes={"smoke": 0.3, "quick": 1.0, "full": 20.0},
)

LOOKS = {"pre": "softmax", "scaled": "mlp", "tanh": "random", "none": "skip", "post": "published", "aligned": "theory"}

# Fixed before anything was measured. A slope of logarithms is off by a tenth where a sum of equal terms starts at 1 and
# has some thirty; an octave of a power law has the slope of the next one to a fifth.
SLOPE, OCTAVES, HALVES = 0.15, 0.2, 0.5
PRINTED = 0.08  # relative error of the moments of one head that 99 of 100 simulations of the source stay below


PRESETS = {
    "smoke": Spec(d_model=16, heads=2, tokens=4, depth=8, count=3, head_d_model=32, head_tokens=32, head_draws=4),
    "quick": Spec(),
    "full": Spec(d_model=512, heads=8, tokens=64, depth=192, count=16, head_draws=64),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By network, initialisation and layer: logarithms of variance, Jacobian and gradient; moments of one head."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(spec.seed), 0), spec.count)
    data = {"depth": np.array(spec.depth), "shape": np.array([spec.d_model, spec.heads, spec.tokens])}
    for name in NETWORKS:
        measured = jax.jit(
            lambda keys, name=name: jax.lax.map(lambda key: growth.network_by_layer(key, name, spec), keys)
        )(keys)
        data |= {f"{name}_{what}": np.asarray(values) for what, values in measured.items()}
    return data | growth.head(spec)


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Variance, Jacobian and gradient by layer; one head's moments."""
    drawing, (sizes, jacobians, gradients, head) = style.figure(columns=2, rows=2, width=5.4, height=3.8)
    layers = np.arange(1, int(data["depth"]) + 1)
    for name, meaning in LOOKS.items():
        look: dict[str, Any] = {"color": style.colour(meaning), "label": name}
        if name != "post":
            sizes.plot(layers, np.exp(np.median(data[f"{name}_variance"], axis=0)[1:]), **look)
        if name in growth.JACOBIANS:
            jacobians.plot(layers, np.exp(np.median(data[f"{name}_jacobian"], axis=0)), **look)
        if name in growth.GRADIENTS:
            gradients.plot(layers, np.exp(np.median(data[f"{name}_gradient"], axis=0)), **look)
    gradients.plot(layers, (layers / layers[-1]) ** -0.5, linestyle=style.DASHES[2], color=style.colour("reference"))
    style.panel(sizes, "layer", "variance of an entry", "Size", log="xy", base=2, legend="best")
    style.panel(jacobians, "layer l", "mean square of ∂X^l/∂X^0", "Jacobian from the tokens", log="xy",
                base=2, legend="best")  # fmt: skip
    style.panel(gradients, "layer", "gradient over the last layer's", "Gradient of W_Q, W_K, W_V, W_O", log="xy",
                base=2, legend="best")  # fmt: skip
    mean = data["head_measured"].mean(axis=1) / data["head_predicted"]
    for column, (name, meaning) in enumerate((("variance", "measured"), ("covariance", "published"))):
        head.plot(np.arange(len(mean)), mean[:, column], "o" if column == 0 else "s", color=style.colour(meaning),
                  label=name)  # fmt: skip
    head.set_xticks(np.arange(len(mean)), [f"{r:.2f}, {gain:g}" for r, gain in data["head"]])
    style.reference(head, y=1)
    style.panel(head, "correlation of tokens, gain of W_Q and W_K", "measured over predicted", "One head",
                legend="best")  # fmt: skip
    return drawing


def slope(logs: np.ndarray, first: int, last: int) -> float:
    """Slope of logarithms by layer, from 1, in the logarithm of the layer, between two layers."""
    return float(np.polyfit(np.log(np.arange(first, last + 1)), logs[first - 1 : last], 1)[0])


def halves(logs: np.ndarray) -> float:
    """Rise of logarithms over the second half of the layers, over that in the first: 1 for exponentials."""
    middle = len(logs) // 2
    return float((logs[-1] - logs[middle]) / (logs[middle] - logs[0]))


def octaves(logs: np.ndarray) -> float:
    """Slope in the logarithm of the layer in the last octave of layers, over that in the octave before."""
    depth = len(logs)
    return slope(logs, depth // 2, depth) / slope(logs, depth // 4, depth // 2)


def last_half(logs: np.ndarray) -> float:
    """Slope in the logarithm of the layer over the second half of the layers; the first entry is before them."""
    return slope(logs[1:], (len(logs) - 1) // 2, len(logs) - 1)


def jackknifed(logs: np.ndarray, statistic: Callable[[np.ndarray], float]) -> tuple[float, float]:
    """A statistic of the mean over initialisations of logarithms by layer, and its error, leaving out one at a time."""
    count, total = len(logs), logs.sum(axis=0)
    without = np.array([statistic((total - each) / (count - 1)) for each in logs])
    return statistic(total / count), float(np.sqrt((count - 1) * without.var()))


def _of(data: Mapping[str, np.ndarray], name: str, statistic: Callable[[np.ndarray], float]) -> Measured:
    """A statistic of one array by layer, and the sizes of the networks."""
    value, error = jackknifed(data[name], statistic)
    return Measured(value, standard_error=error, numbers=_sizes(data))


def _sizes(data: Mapping[str, np.ndarray]) -> dict[str, int]:
    d_model, heads, tokens = (int(size) for size in data["shape"])
    count = len(data["pre_variance"])
    return {"width": d_model, "heads": heads, "tokens": tokens, "layers": int(data["depth"]), "count": count}


def _scaled(data: Mapping[str, np.ndarray]) -> Measured:
    """The slope of log variance where LayerNorm is scaled, and how what branches add is correlated with the tokens."""
    found = _of(data, "scaled_variance", last_half)
    value, error = mean_and_error(data["scaled_correlation"].mean(axis=1))
    told = {"correlation": f"{value:.4f}", "correlation_error": f"{error:.4f}"}
    return dataclasses.replace(found, reads=[data["scaled_correlation"]], numbers={**found.numbers, **told})


def _post(data: Mapping[str, np.ndarray]) -> Measured:
    """Halves of the log gradient where LayerNorm stands after the branches, and its whole change."""
    rest = data["post_gradient"][:, data["post_gradient"].shape[1] // 8 :]
    found = _of({**data, "post_gradient": rest}, "post_gradient", halves)
    change, error = mean_and_error(rest[:, -1] - rest[:, 0])
    told = {"change": f"{change:.3f}", "change_error": f"{error:.3f}", "counted": rest.shape[1]}
    return dataclasses.replace(found, numbers={**found.numbers, **told})


def _head_errors(data: Mapping[str, np.ndarray]) -> Measured:
    """Relative error of the closed forms."""
    mean, error = mean_and_error(data["head_measured"], axis=1)
    off, wrong = np.abs(mean / data["head_predicted"] - 1), error / data["head_predicted"]
    where = [f"{what}, r = {r:.2g}, gain {gain:g}" for r, gain in data["head"] for what in ("variance", "covariance")]
    return Measured(off.ravel(), standard_error=wrong.ravel(), where=where, reads=[data["head"]])


SETTING = (
    "Gaussian weights and tokens, all independent; here <tokens> tokens, <width> wide, <heads> heads, <layers> layers "
    "of attention and a GELU MLP, <count> initialisations"
)
BERT = "the source runs BERT, 192 layers, 1024 wide, on its own loss and text; here it is smaller, with a random loss"
sun = functools.partial(published, source="sun2025depth", hypotheses=SETTING)
kedia = functools.partial(published, source="kedia2024-code", hypotheses=SETTING, elsewhere=BERT)
alekseev = functools.partial(
    published, source="alekseev2026", place="abstract", hypotheses=f"bidirectional attention; {SETTING}",
    after_result=True,
    note="slope of log J against log l in the last octave of layers over that in the octave before; 1 for a power law, "
    r"$\sqrt{2}$ for $e^{c\sqrt{l}}$",
)  # fmt: skip
ROWS = (
    sun(
        "growth-at-least",
        "With LayerNorm before the branches the variance of a layer's output grows at least linearly with depth.",
        lambda data: _of(data, "pre_variance", last_half),
        at_least(1 - SLOPE),
        place="lemma 3.2, version 5",
        interval_from="our tolerance for a finite depth",
        note="slope of log variance against log depth, second half of the layers",
    ),
    sun(
        "growth-exponential",
        "With LayerNorm before the branches the output variance grows exponentially with depth.",
        lambda data: _of(data, "pre_variance", halves),
        near(1, HALVES),
        place="abstract, version 5",
        elsewhere="the abstract names no network, its evidence is of trained ones, and lemma 3.2 has the exponential "
        "as an upper bound",
        interval_from="our tolerance: a half",
        note="rise of log variance in the second half of the layers over that in the first; 1 for an exponential",
    ),
    sun(
        "growth-scaled",
        r"With LayerNorm times $1/\sqrt{l}$ the variance grows at least linearly and slower than its square.",
        _scaled,
        (1 - SLOPE, 1.5 + SLOPE),
        place="lemma 4.1, version 5",
        interval_from=r"exponents 1 and $2-\epsilon$, $\epsilon\geq1/2$; our tolerance for a finite depth",
        elsewhere="of branches that are correlated with the tokens the variance grows: with any correlation above 0 "
        "that stays, the exponent tends to 1; here it is <correlation> ± <correlation_error>, the mean over layers",
        note="slope of log variance against log depth, second half of the layers; independent branches of variance "
        r"$c/l$ add up to $c\log l$",
    ),
    kedia(
        "growth-linear",
        "With LayerNorm before the branches the variance of the hidden states grows in proportion to the depth.",
        lambda data: _of(data, "pre_variance", last_half),
        near(1, SLOPE),
        place="figure preln_forward",
        interval_from="our tolerance for a finite depth",
        note="slope of log variance against log depth, second half of the layers",
    ),
    kedia(
        "growth-hyperbolic",
        r"With LayerNorm before the branches the gradient of layer $l$ falls as $1/\sqrt{l}$.",
        lambda data: _of(data, "pre_gradient", lambda logs: slope(logs, max(len(logs) // 8, 1), len(logs))),
        near(-0.5, SLOPE),
        place="figure preln_backward",
        interval_from="our tolerance",
        note=r"slope of the log gradient of $W_Q,W_K,W_V,W_O$ against log depth, without the first eighth",
    ),
    kedia(
        "growth-post",
        "With LayerNorm after the branches the gradient changes exponentially from layer to layer.",
        _post,
        near(1, HALVES),
        place="figure postln_backward",
        interval_from="our tolerance: a half",
        note="rise of the log gradient in the second half of the layers over that in the first, without the first "
        "eighth; over the <counted> layers that are left it changes by <change> ± <change_error>",
    ),
    published(
        "growth-head",
        "The variance and covariance of the outputs of a head follow from those of the tokens by closed forms.",
        _head_errors,
        at_most(PRINTED),
        source="kedia2024-code",
        place="simulations/SHA.py",
        hypotheses="Gaussian tokens of variance 1 with equal correlations, Gaussian weights, no dropout",
        interval_from="the relative error below which 99 of 100 of the source's simulations lie, as it prints, rounded "
        "up",
        note="relative error of the mean over draws",
    ),
    alekseev(
        "growth-power",
        "With LayerNorm before the branches the mean square $J$ of the Jacobian from the tokens is a power of depth.",
        lambda data: _of(data, "pre_jacobian", octaves),
        near(1, OCTAVES),
        interval_from="our tolerance",
    ),
    alekseev(
        "growth-stretched",
        "With elementwise tanh in place of LayerNorm $J$ grows as a stretched exponential of depth.",
        lambda data: _of(data, "tanh_jacobian", octaves),
        near(2**0.5, OCTAVES),
        interval_from="our tolerance, that of the power; the direction of the Jacobian and the errors were changed "
        "when results were known",
    ),
)
