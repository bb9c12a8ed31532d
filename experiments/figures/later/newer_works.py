"""Six newer works, one checkable statement each: massive tokens, long prompts, ranks, distances, Laplacian heads."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from matplotlib.figure import Figure as Drawing

from experiments.ledger import Measured, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import attention

ABOUT = figure.About(
    title="Newer works: one statement each",
    caption=(
        "First three: entropy of the squared singular values of random tokens, one of them ever larger, under its "
        "bound; softmax attention on Gaussian tokens against the linear map that it tends to; variance of one output "
        "over texts, and σ² E Σp². Last three: singular values of scores without their row means, and under a causal "
        "mask; distance of softmax(q·k) from softmax(−‖q − k‖²/2), against how unequal the lengths of keys are; what "
        "a head I − P adds to nearly equal tokens, over what P adds."
    ),
    formula="Σp_j x_j → W q;   Var Σp_j v_j = σ² E Σp²;   softmax(q·k) = softmax(−‖q − k‖²/2) if all ‖k‖ are equal",
    topic="later",
    minutes={"smoke": 0.05, "quick": 0.15, "full": 1.0},
)
PAGE = "docs/width_collapse.md"
MASSES = 10.0 ** np.arange(0, 4.5, 0.5)  # energy of the large token over that of the others
LENGTHS = (64, 256, 1024, 4096)  # of prompts
UNEQUAL = np.array([0.0, 0.01, 0.03, 0.1, 0.3, 1.0])  # spread of the logarithm of a key's length
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Tokens and features of random matrices, their number, and texts for a variance."""

    dtype: str = "float64"
    tokens: int = 64
    features: int = 32
    head: int = 8
    cases: int = 64
    texts: int = 2048


PRESETS = {
    "smoke": Spec(tokens=24, features=12, head=4, cases=8, texts=64),
    "quick": Spec(),
    "full": Spec(tokens=256, features=64, head=16, cases=512, texts=16384),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """The numbers of all six panels, and how equal tokens move under a Laplacian head."""
    rng = np.random.default_rng(spec.seed)
    return {
        "mass": MASSES, "length": np.array(LENGTHS), "unequal": UNEQUAL, "head": np.array(spec.head),
        "texts": np.array(float(spec.texts)),
        **_massive(rng, spec), **_long_prompts(rng, spec), **_ranks(rng, spec), **_distances(rng, spec),
        **_laplacian(rng, spec),
    }  # fmt: skip


def _massive(rng: np.random.Generator, spec: Spec) -> dict[str, np.ndarray]:
    """Entropy of σ²/Σσ² by case and mass, and its bound by the share p of energy along the large token.

    The largest share of a singular value is at least p, and for p ≥ 1/r, with r singular values, the entropy is at most
    that of one share p and r − 1 equal others.
    """
    entropy, bound = (np.empty((spec.cases, MASSES.size)) for _ in range(2))
    rank = min(spec.tokens, spec.features)
    for case in range(spec.cases):
        x = rng.normal(size=(spec.tokens, spec.features))
        rest, direction = x[1:], x[0] / np.linalg.norm(x[0])
        along = np.sum((rest @ direction) ** 2) / np.sum(rest**2)
        for at, mass in enumerate(MASSES):
            x[0] = direction * np.sqrt(mass * np.sum(rest**2))
            share = np.linalg.svd(x, compute_uv=False) ** 2 / np.sum(x**2)
            entropy[case, at] = scipy.special.entr(share).sum()
            p = (mass + along) / (mass + 1)
            bound[case, at] = scipy.special.entr([p, 1 - p]).sum() + (1 - p) * np.log(rank - 1)
    return {"entropy": entropy, "entropy_bound": bound}


def _long_prompts(rng: np.random.Generator, spec: Spec) -> dict[str, np.ndarray]:
    """By length: distance of Σp_j x_j from W q over ‖W q‖; variance of an entry of Σp_j v_j and of σ² E Σp².

    Scores are x_jᵀ W q with x_j normal and ‖W q‖ = 1: the Gaussian measure tilted by them has the mean W q.
    """
    direction = np.eye(1, spec.head)[0]
    distance, variance, participation = (np.empty(len(LENGTHS)) for _ in range(3))
    for at, length in enumerate(LENGTHS):
        apart, first, square = [], [], []
        for _ in range(spec.texts):
            x = rng.normal(size=(length, spec.head))
            weights = np.exp(x @ direction)
            p = weights / weights.sum()
            out = p @ x
            apart.append(np.linalg.norm(out - direction))
            first.append(out[-1])  # an entry that the scores do not read: its mean is 0 and σ = 1
            square.append(p @ p)
        distance[at], variance[at], participation[at] = np.mean(apart), np.var(first), np.mean(square)
    return {"prompt_distance": distance, "prompt_variance": variance, "prompt_participation": participation}


def _ranks(rng: np.random.Generator, spec: Spec) -> dict[str, np.ndarray]:
    """Singular values of scores less their row means, over the largest: of all tokens, and of those that a row sees."""
    scores = rng.normal(size=(spec.tokens, spec.head)) @ rng.normal(size=(spec.tokens, spec.head)).T
    centred = scores - scores.mean(axis=1, keepdims=True)
    seen = np.tri(spec.tokens)
    causal = seen * (scores - (seen * scores).sum(axis=1, keepdims=True) / seen.sum(axis=1, keepdims=True))
    values = np.array([np.linalg.svd(each, compute_uv=False) for each in (centred, causal)])
    return {"centred": values / values[:, :1], "row_sums": np.abs(centred.sum(axis=1)) / np.abs(scores).max()}


def _distances(rng: np.random.Generator, spec: Spec) -> dict[str, np.ndarray]:
    """Total variation between softmax of products and of distances, by spread of the lengths of keys: largest row."""
    queries, keys = (rng.normal(size=(spec.tokens, spec.head)) for _ in range(2))
    keys = keys / np.linalg.norm(keys, axis=1, keepdims=True) * spec.head**0.5
    length = np.exp(rng.normal(size=(spec.tokens, 1)))
    apart = []
    for spread in UNEQUAL:
        moved = keys * length**spread
        squares = ((queries[:, None] - moved[None]) ** 2).sum(axis=-1)
        both = [scipy.special.softmax(each, axis=1) for each in (queries @ moved.T, -squares / 2)]
        apart.append(np.abs(both[0] - both[1]).sum(axis=1).max() / 2)
    return {"variation": np.array(apart)}


def _laplacian(rng: np.random.Generator, spec: Spec) -> dict[str, np.ndarray]:
    """What a head I − P adds to tokens that are nearly equal, over what the head P adds: by their distance."""
    layer = attention.AttentionSpec(d_model=spec.features)
    params = attention.init(jax.random.key(spec.seed), layer, dtype=spec.dtype)
    mean, rest = rng.normal(size=spec.features), rng.normal(size=(spec.tokens, spec.features))
    size, ratios = np.array([1e-1, 1e-2, 1e-3, 0.0]), []
    for each in size:
        x = jnp.asarray(mean + each * rest)
        rows = np.asarray(attention.attention_weights(params, x, layer))[0]
        value = np.asarray(x) @ np.asarray(params.value[0]) @ np.asarray(params.output[0])
        ratios.append(np.linalg.norm(value - rows @ value) / np.linalg.norm(rows @ value))
    return {"laplacian_size": size, "laplacian": np.array(ratios)}


def plot(data: Data) -> Drawing:
    """Entropy, distance, variance; ranks, distances, Laplacian heads."""
    drawing, (massive, prompt, variance, ranks, distances, laplacian) = style.figure(columns=3, rows=2, width=4.6)
    low, middle, high = np.quantile(data["entropy"], (0, 0.5, 1), axis=0)
    style.bands(massive, data["mass"], low, middle, high, label="measured")
    massive.plot(data["mass"], data["entropy_bound"].max(0), color=style.colour("theory"), label="bound, largest")
    style.panel(massive, "energy of one token / others", "entropy of σ²/Σσ² (nats)", "A massive token compresses",
                log="x", legend="lower left")  # fmt: skip
    n = data["length"]
    prompt.plot(n, data["prompt_distance"], "o-", color=style.colour("measured"))
    style.panel(prompt, "n, tokens", "‖Σp_j x_j − W q‖/‖W q‖", "Long prompts: a linear map", log="xy")
    variance.plot(n, data["prompt_variance"], "o", color=style.colour("measured"), label="variance over texts")
    variance.plot(n, data["prompt_participation"], color=style.colour("theory"), label="σ² E Σp²")
    style.panel(variance, "n, tokens", "variance of an entry", "Variance vanishes", log="xy", legend="upper right")

    # Singular values, distances of weights, and Laplacian heads.
    for values, label, index in zip(data["centred"], ("all keys", "keys that a row sees"), (0, 1), strict=True):
        ranks.plot(np.arange(1, values.size + 1), np.maximum(values, 1e-17), label=label, **style.cycle(index))
    style.reference(ranks, x=float(data["head"]), text="d_k")
    style.panel(ranks, "index", "σ/σ₁ of centred scores", "Rank of centred scores", log="y", legend="best")
    distances.plot(data["unequal"], np.maximum(data["variation"], 1e-17), "o-", color=style.colour("measured"))
    style.panel(distances, "spread of log ‖k‖", "largest total variation", "Products against distances", log="y")
    some = data["laplacian_size"] > 0
    laplacian.plot(data["laplacian_size"][some], data["laplacian"][some], "o-", color=style.colour("measured"))
    style.panel(laplacian, "distance of tokens", "size of (I − P)XW over PXW", "Laplacian heads", log="xy")
    return drawing


def _compressed(data: Data) -> Measured:
    """Largest change of entropy from one mass to the next, and the largest entropy at the last mass over the first."""
    entropy = data["entropy"]
    return Measured(
        [np.diff(entropy, axis=1).max(), (entropy[:, -1] / entropy[:, 0]).max()],
        where=["change as the token grows", "last over first"],
        reads=[entropy],
        numbers={
            "first": np.median(entropy[:, 0]),
            "last": np.median(entropy[:, -1]),
            "mass": data["mass"][-1],
            "cases": len(entropy),
        },
    )


def _to_linear(data: Data) -> Measured:
    """Distance from the linear map at the longest prompts, and its change from one length to the next."""
    distance = data["prompt_distance"]
    return Measured(
        [distance[-1], np.diff(distance).max()],
        where=[f"n = {data['length'][-1]}", "change with n"],
        reads=[distance],
        numbers={"first": distance[0], "least": data["length"][0]},
    )


def _rank(data: Data) -> Measured:
    """Numerical rank of centred scores less d_k, and the largest sum of a row."""
    return Measured(
        [np.sum(data["centred"][0] > RANK) - data["head"], data["row_sums"].max()],
        where=["rank less $d_k$", "sum of a row"],
        reads=[data["centred"]],
        numbers={"head": int(data["head"]), "causal": int(np.sum(data["centred"][1] > RANK))},
    )


def _by_distance(data: Data) -> Measured:
    """Total variation of the two kinds of weights, for keys of one length and of the most unequal ones."""
    return Measured(
        [data["variation"][0], data["variation"][-1]],
        where=["equal lengths", "unequal lengths"],
        reads=[data["variation"]],
        numbers={"spread": UNEQUAL[-1]},
    )


RANK = 1e-10  # of the largest singular value
ROUNDING = 1e-12
said = functools.partial(published, place="abstract", formula=True)
ROWS = (
    said(
        "massive-compresses",
        "A massive activation of one token necessarily compresses the representations.",
        _compressed,
        at_most([0, 0.5]),
        source="queipo2025",
        hypotheses=r"<cases> draws of normal tokens, one of them multiplied, to <mass:g> times the energy of the "
        r"others; compressed: less entropy of $\sigma^{2}/\sum\sigma^{2}$, $\sigma$ the singular values",
        interval_from="the sign in every draw; our tolerance: to the half",
        note="change from one size of the token to the next, in nats, and entropy at the last over the first; its "
        "median goes from <first:.2f> to <last:.3f>; the paper's bounds were not read, ours is massive-bound",
    ),
    law(
        "massive-bound",
        r"If one token has $c$ times the energy of the others and these have the share $\alpha$ of theirs along it, "
        r"the largest $\sigma^{2}/\sum\sigma^{2}$ is at least $p=(c+\alpha)/(c+1)$, and of $r$ of them with $p\geq1/r$ "
        r"the entropy is at most $-p\log p-(1-p)\log(1-p)+(1-p)\log(r-1)$.",
        lambda data: Measured(
            (data["entropy"] / data["entropy_bound"]).max(),
            reads=[data["entropy"], data["entropy_bound"]],
            numbers={"cases": len(data["entropy"])},
        ),
        at_most(1 + ROUNDING),
        proof="proved",
        place=PAGE,
        neighbours=["queipo2025"],
        hypotheses=r"<cases> draws of normal tokens, one of them multiplied; $\sigma$ the singular values",
        interval_from="the inequality; rounding of float64",
        note="largest entropy over its bound",
    ),
    said(
        "prompt-linear",
        "For independent Gaussian tokens and ever longer prompts softmax attention tends to a linear map.",
        _to_linear,
        at_most([0.1, 0]),
        source="boursier2025",
        hypotheses=r"normal tokens, values the tokens, scores $x_j^{\top}\thinspace W\thinspace q$ with $\lVert "
        r"Wq\rVert=1$; the map $q\mapsto W\thinspace q$ is the mean of the tilted Gaussian law",
        interval_from="our tolerance: a tenth at the longest prompt; the sign of every change",
        note=r"mean distance from $Wq$ over its length; at $n=<least>$ it is <first:.2f>",
    ),
    said(
        "variance-vanishes",
        "A longer sequence lowers the variance of the output of attention.",
        lambda data: Measured(
            np.log(data["prompt_variance"][1:] / data["prompt_variance"][:-1]),
            where=[f"n = {a} to {b}" for a, b in zip(data["length"][:-1], data["length"][1:], strict=True)],
        ),
        at_most(0),
        source="li2025variance",
        hypotheses="independent normal tokens, one query, an entry that the scores do not read; the source shows it of "
        "trained models too, which are not tested",
        interval_from="the sign",
        note="change of the logarithm of the variance over texts",
    ),
    law(
        "variance-participation",
        r"Of values of variance $\sigma^{2}$ that are independent of the weights $p$, an output has the variance "
        r"$\sigma^{2}\thinspace E\sum p^{2}$.",
        lambda data: Measured(
            data["prompt_variance"] / data["prompt_participation"],
            standard_error=np.full(len(LENGTHS), (2 / data["texts"]) ** 0.5),
            where=[f"n = {each}" for each in data["length"]],
            reads=[data["prompt_participation"]],
        ),
        near(1, 0.2),
        proof="proved",
        place=PAGE,
        neighbours=["li2025variance"],
        hypotheses="independent values of mean 0",
        interval_from="our tolerance: a fifth",
        note="variance over texts, over the mean participation",
    ),
    said(
        "centred-rank",
        r"Scores less the mean of their row sum to zero in every row, and have at most the rank $d_k$.",
        _rank,
        near(0, [0, ROUNDING]),
        source="invariants2026",
        hypotheses="random scores of one head without a mask, rank <head>",
        interval_from="an integer; rounding of float64",
        note=r"under a causal mask, centred over the keys that a row sees, the matrix is triangular with one 0 on its "
        r"diagonal, and of rank $n-1$; <causal> of its singular values are above 1e-10 of the largest: the bound is "
        "one of rows that see the same keys",
    ),
    said(
        "distance-weights",
        r"Softmax of $q\cdot k$ is softmax of $-\lVert q-k\rVert^{2}/2$ if all keys have one length, and leaves out "
        r"$-\lVert k\rVert^{2}/2$ otherwise.",
        _by_distance,
        (np.array([0, 0.1]), np.array([ROUNDING, np.inf])),
        source="balasubramanian2026",
        hypotheses="random queries and keys; the logarithm of a key's length has the spread 0, or <spread:g>",
        interval_from="rounding of float64; our tolerance: weights that differ by a tenth",
        note="largest total variation over rows",
    ),
    said(
        "laplacian-equal",
        r"In place of $P$ a head may have the Laplacian $I-P$ of the graph whose edges weigh $P$, which acts on "
        "differences between tokens.",
        lambda data: Measured(
            [data["laplacian"][-1], np.log10(data["laplacian"][0] / data["laplacian"][2])],
            where=["equal tokens", "exponent in the distance"],
            reads=[data["laplacian"]],
        ),
        (np.array([0, 1.9]), np.array([ROUNDING, 2.1])),
        source="zhang2026laplacian",
        hypotheses="one random layer, tokens at distances 0.1 to 0.001 and equal ones",
        interval_from="rounding of float64; our tolerance: two powers of ten of a distance are two of the output",
        note=r"size of $(I-P)XW$ over that of $PXW$; tokens that are equal are not moved, as $(I-P)1=0$",
    ),
)
