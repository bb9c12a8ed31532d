"""Position codes: sizes beside embeddings, scores that see differences only, and how far away they fall."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.ledger import Measured, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import attention

ROFORMER, PAGE = "su2021roformer", "docs/cost_and_special_cases.md"
ABOUT = figure.About(
    title="Position codes: length, shift and fall",
    caption=(
        "First: length of a sinusoidal code against those of embeddings with entries N(0, 1/d), as drawn and times √d. "
        "Second: how much a rotary score changes, over the product of the lengths, when all positions are shifted "
        "alike: it should not. Angles as products in float32 lose it; angles reduced in integers do not. Third: mean "
        "score of a query with itself at a distance, its octave means, and the logarithmic law. RoFormer's bound, over "
        "its value at 0, falls too."
    ),
    formula="‖PE‖ = √(d/2);   PE(p + k) = R_k PE(p);   (2/d) Σ_i cos(k ω_i) ≈ 1 − (log k + γ)/log base − 1/d",
    topic="layer",
    minutes={"smoke": 0.06, "quick": 0.08, "full": 0.5},
)
SHIFTED = 100.0  # roundings allowed to a score of `width` products
LAW = 0.007  # of the mean score, octave by octave, between 4 and base/4
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Widths of embeddings; width and base of the rotary code; octaves of distance and of shifts."""

    dtype: str = "float64"
    d_models: tuple[int, ...] = (32, 128, 512, 2048)
    words: int = 256
    width: int = 128
    base: float = 10_000.0
    octaves: int = 16
    shifts: int = 24


PRESETS = {
    "smoke": Spec(d_models=(32, 128), words=32, octaves=14, shifts=20),
    "quick": Spec(),
    "full": Spec(words=16_384, octaves=20, shifts=30),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Lengths by width; errors of the linear map; changes of scores by shift; mean scores by distance."""
    random = np.random.default_rng(spec.seed)
    lengths = [np.linalg.norm(random.normal(size=(spec.words, d)) / np.sqrt(d), axis=1) for d in spec.d_models]
    codes = [np.linalg.norm(attention.sinusoidal(jnp.arange(64), d), axis=1) for d in spec.d_models]
    return {
        "d_models": np.array(spec.d_models), "norm": np.mean(lengths, axis=1),
        "norm_error": np.std(lengths, axis=1, ddof=1) / np.sqrt(spec.words), "code": np.array(codes),
        "linear": np.array(_linear(spec)), "width": np.array([spec.width, spec.base]),
        **_shifts(spec, random), **_fall(spec),
    }  # fmt: skip


def _linear(spec: Spec) -> float:
    """Largest difference of PE(p + k) and R_k PE(p), positions and offsets to 10⁵; R_k from the code of k itself."""

    def code(positions: jax.Array) -> np.ndarray:
        """The code's pairs of features as complex numbers e^(ipω)."""
        pairs = np.asarray(attention.sinusoidal(positions, spec.width, base=spec.base))
        return pairs[:, 1::2] + 1j * pairs[:, 0::2]

    p = jnp.arange(0, 100_000, 3001)
    gaps = [code(p + k) - code(p) * code(jnp.array([k])) for k in (1, 7, 1000, 99_991)]
    return float(np.abs(gaps).max())


def _shifts(spec: Spec, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Largest change of a score over |q||k| by shift: angles reduced first, and as products in float32."""
    query, key = (jnp.asarray(random.normal(size=(16, spec.width)), "float32") for _ in range(2))
    size = jnp.linalg.norm(query, axis=1)[:, None] * jnp.linalg.norm(key, axis=1)[None]
    positions, shifts = jnp.arange(16), 2 ** np.arange(spec.shifts)
    frequency = jnp.asarray(spec.base ** (-2 * np.arange(spec.width // 2) / spec.width), "float32")

    def reduced(x: jax.Array, at: jax.Array) -> jax.Array:
        return attention.rotary(x, at, base=spec.base)

    def product(x: jax.Array, at: jax.Array) -> jax.Array:
        angle = at[:, None].astype("float32") * frequency[None]
        cos, sin, even, odd = jnp.cos(angle), jnp.sin(angle), x[:, 0::2], x[:, 1::2]
        return jnp.concatenate([even * cos - odd * sin, even * sin + odd * cos], axis=1)

    # Scores after a shift less scores before, by each way to make an angle.
    def change(shift: jax.Array) -> jax.Array:
        rows = []
        for rotate in (reduced, product):
            far, near = (
                jnp.matmul(rotate(query, at), rotate(key, at).T, precision="highest")
                for at in (positions + shift, positions)
            )
            rows.append(jnp.max(jnp.abs(far - near) / size))
        return jnp.stack(rows)

    changes = jax.jit(lambda shifts: jax.lax.map(change, shifts))(jnp.asarray(shifts))
    return {"shift": shifts, "change": np.asarray(changes, float).T}


def _fall(spec: Spec) -> dict[str, np.ndarray]:
    """Mean score by distance, (2/d) Σ cos(kω), and by octave; RoFormer's bound by octave."""
    frequency = spec.base ** (-2 * np.arange(spec.width // 2) / spec.width)
    means, bounds = [], []
    for octave in range(spec.octaves):
        distance = np.unique(np.linspace(2**octave, 2 ** (octave + 1) - 1, 4096).astype(int))
        angle = distance[:, None] * frequency
        means.append(np.cos(angle).mean())
        bounds.append(np.abs(np.cumsum(np.exp(1j * angle), axis=1)).mean())
    shown = np.unique(np.geomspace(1, 2**spec.octaves, 60).astype(int))
    return {
        "octave": 2.0 ** (np.arange(spec.octaves) + 0.5), "mean": np.array(means),
        "bound": np.array(bounds) / ((spec.width / 2 + 1) / 2),
        "distance": shown, "exact": np.cos(shown[:, None] * frequency).mean(axis=1),
    }  # fmt: skip


def _law(distance: np.ndarray, width: float, base: float) -> np.ndarray:
    """The integral over frequencies, less half a step of the sum at the slow end."""
    return 1 - (np.log(distance) + np.euler_gamma) / np.log(base) - 1 / width


def plot(data: Data) -> Drawing:
    """Lengths; shifts; fall."""
    drawing, (length, shift, fall) = style.figure(columns=3, width=5.0, height=4.6)
    d, width, base = data["d_models"], int(data["width"][0]), float(data["width"][1])
    length.plot(d, np.sqrt(d / 2), color=style.colour("theory"), label="√(d/2)")
    length.plot(d, data["code"].mean(axis=1), "o", color=style.colour("measured"), label="sinusoidal code")
    for factor, fmt, meaning, text in ((d**0.5, "s:", "corrected", "times √d"), (1, "^:", "published", "as drawn")):
        length.errorbar(d, factor * data["norm"], 2 * factor * data["norm_error"], fmt=fmt, fillstyle="none",
                        color=style.colour(meaning), label=f"embedding, {text}")  # fmt: skip
    for row, meaning, text in ((0, "corrected", "angles reduced in integers"), (1, "float32", "angles as products")):
        shift.plot(data["shift"], np.maximum(data["change"][row], 1e-9), "o-", color=style.colour(meaning),
                   label=f"{text}, float32", markersize=4)  # fmt: skip
    ideal = data["shift"] * np.finfo("float32").eps
    shift.plot(data["shift"], ideal, ":", color=style.colour("theory"), label="ε × shift")
    # The fall: every distance, octaves, RoFormer's bound, and the law up to the base.
    inside = data["distance"][data["distance"] <= base]
    fall.plot(data["distance"], data["exact"], color=style.colour("measured"), linewidth=0.7, label="(2/d) Σ cos(kω)")
    fall.plot(data["octave"], data["mean"], "D", color=style.colour("corrected"), markersize=5, label="octave means")
    fall.plot(data["octave"], data["bound"], "^:", color=style.colour("published"), fillstyle="none", linewidth=1,
              label="RoFormer's bound")  # fmt: skip
    label = "1 − (log k + γ)/log b − 1/d"
    fall.plot(inside, _law(inside, float(data["width"][0]), base), "--", color=style.colour("theory"), label=label)
    style.reference(fall, x=base, text="base")
    style.panel(length, "d, width of the model", "length ‖·‖₂", "Codes beside embeddings", log="xy", base=2,
                legend="below", columns=2)  # fmt: skip
    style.panel(shift, "common shift of all positions", "largest change of a score / (|q||k|)", "A common shift",
                log="xy", base=2, legend="below")  # fmt: skip
    style.panel(fall, "k, distance of query and key", "mean score / (|q||k|)", f"Fall with distance, d = {width}",
                log="x", legend="below", columns=2)  # fmt: skip
    return drawing


def _embedding_over_code(data: Data) -> Measured:
    """Length of an embedding times √d over that of a code, at the width nearest to 512."""
    d = data["d_models"]
    at = int(np.argmin(np.abs(d - 512)))
    ratio = data["norm"][at] * np.sqrt(d[at]) / data["code"][at].mean()
    return Measured(
        ratio,
        standard_error=data["norm_error"][at] * np.sqrt(2),
        numbers={"width": d[at], "without": ratio / np.sqrt(d[at])},
    )


def _bound_falls(data: Data) -> Measured:
    """Differences of the bound to the octave before, below the base."""
    below = data["octave"] < float(data["width"][1])
    return Measured(np.diff(data["bound"][below]), where=_distances(data["octave"][below][1:]))


def _less_law(data: Data) -> Measured:
    """Octave means less the law, for distances between 1 and the base."""
    octave, (width, base) = data["octave"], data["width"]
    chosen = (octave > 4) & (octave < base / 4)
    return Measured((data["mean"] - _law(octave, width, base))[chosen], where=_distances(octave[chosen]))


def _distances(octaves: np.ndarray) -> list[str]:
    return [f"k = {each:.3g}" for each in octaves]


ROTARY = f"$d={Spec().width}$, base {Spec().base:g}"
ROWS = (
    published(
        "positions-linear",
        "For any fixed offset $k$ the code of position $p+k$ is a linear function of that of $p$.",
        lambda data: data["linear"],
        near(0, 16 * np.finfo("float64").eps),
        formula=True,
        source="vaswani2017",
        place="section 3.5",
        hypotheses="positions and offsets to $10^{5}$, the map taken from the code of $k$ itself",
        interval_from="16 roundings of float64",
        note="identity; measured: largest difference",
    ),
    published(
        "positions-embedding",
        r"Embeddings are multiplied by $\sqrt{512}$ so that at the start they do not differ too much in size from "
        "position codes.",
        _embedding_over_code,
        (0.5, 2.0),
        formula=True,
        source="study-notes",
        place="section on word embeddings",
        hypotheses="embeddings with entries $N(0,1/d)$, which is our assumption, $d=<width>$",
        interval_from="our tolerance: a factor of 2",
        note="measured: length of an embedding over that of a code; without the factor <without:.3f>; Vaswani et al. "
        "2017, section 3.4, has the factor without the reason",
    ),
    published(
        "positions-shift",
        "A rotary score depends on the difference of two positions only.",
        lambda data: Measured(data["change"][0], where=[f"shift 2^{i}" for i in range(data["shift"].size)]),
        at_most(SHIFTED * np.finfo("float32").eps),
        formula=True,
        source=ROFORMER,
        place="equation 16",
        hypotheses=f"{ROTARY}; float32, angles reduced in integers",
        interval_from=f"{SHIFTED:g} roundings of float32",
        note=r"measured: largest change of a score over $\lvert q\rvert\lvert k\rvert$ when both positions shift",
    ),
    published(
        "positions-fall",
        "The upper bound on a rotary score decays as the distance grows.",
        _bound_falls,
        at_most(0),
        formula=True,
        source=ROFORMER,
        place="section 3.4.3, figure 2",
        hypotheses=f"{ROTARY}; means over octaves of distance, below the base",
        interval_from="the sign of a difference",
        note="measured: difference of the bound to the octave before, over its value at 0",
    ),
    law(
        "positions-law",
        r"The mean rotary score at distance $k$, over its value at 0, is about "
        r"$1-(\log k+\gamma)/\log\mathrm{base}-1/d$.",
        _less_law,
        near(0, LAW),
        proof="derived",
        place=PAGE,
        hypotheses=rf"{ROTARY}; isotropic $q$ and $k$ of given product; means over octaves, $4\lt "
        r"k\lt\mathrm{base}/4$",
        after_result=True,
        interval_from=f"our tolerance: {LAW}; $1/d$, by which the sum over frequencies lies below its integral, was "
        "added when all octaves had come out below the law without it",
        neighbours=[ROFORMER, "men2024"],
        note="measured: mean less the law",
    ),
)
