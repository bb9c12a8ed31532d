"""Other measures of softmax's gradient, and other normalisers: which scale is best then, and does it follow log n?"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import experiments.lib.figure
from experiments.figures._peaks import jackknife, peaks
from experiments.figures._samples import draw
from experiments.figures.scale.parts._objective_rows import HIGH, LARGEST, LONGEST, LOW, NAMES, NEAR, ROWS
from experiments.lib import style
from experiments.lib.figure import About, Data
from rc_jax import scale

NORMS = (
    scale.jacobian_trace,
    scale.jacobian_largest_entry,
    scale.jacobian_frobenius_norm,
    scale.jacobian_spectral_norm,
)
NORMALISERS = ("softmax", "entmax15", "sparsemax")
TITLES = ("softmax", "1.5-entmax", "sparsemax")
SIXTH = np.linspace(0, 4, 41)  # mean of a score over its standard deviation
SMALLEST = 1e-37
BATCHES = 8
BLOCKS = 8
ABOUT = About(
    title="Other objectives: the mean has no best scale, the typical row has one near α_c",
    caption=(
        "n standard normal scores, J the Jacobian of p(αs). Left above: four sizes of J grow with α on the mean, "
        "towards E max s or half of it. Right above: the α that maximises the mean logarithm, 2 standard errors. Left "
        "below: the mean trace (points) is E Σ p s (lines) for every normaliser that is a regularised maximum, hence "
        "rises with α. Right below: the sixth-power normaliser, whose gradient by s is the same at every scale and "
        "tends to a constant in n."
    ),
    formula="J = α(diag g − ggᵀ/Σg), g = p, √p or 1 on the support;   E tr J = E Σ p s;   a = s⁶/Σs⁶: J(ts) = J(s)/t",
    topic="scale",
    minutes={"smoke": 0.15, "quick": 0.55, "full": 30},
)
__all__ = ["ABOUT", "PRESETS", "ROWS", "Spec", "compute", "plot"]


class Spec(experiments.lib.figure.Spec):
    """Sizes 4^first … 4^last, prefixes of the same rows; the normalisers are compared at the last but one."""

    first: int = 2
    last: int = 6
    samples: int = 192
    points: int = 25
    entries: int = 2**25  # scores of each size for the largest entry, whose optimum differs much from row to row


PRESETS = {
    "smoke": Spec(last=4, samples=32, points=13, entries=2**15),
    "quick": Spec(),
    "full": Spec(last=9, samples=2048, points=49, entries=2**28),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Means and mean logarithms of every norm on a grid of α, in batches; normalisers; the sixth power."""
    sizes = 4 ** np.arange(spec.first, spec.last + 1)
    alpha = np.unique(np.concatenate([np.geomspace(0.8, 12, spec.points), [HIGH, 20.0, 40.0]]))
    few = np.geomspace(0.03, 12, spec.points // 2)
    best = np.asarray(scale.optimal_scale_exact(sizes.astype(np.float32)))
    # means of every batch; a jackknife over them gives the errors of the optima
    row = _row(sizes, alpha, few, best)
    key = jax.random.key(spec.seed)
    parts = [draw(row, jax.random.fold_in(key, i), spec.samples // BATCHES, batch_size=8) for i in range(BATCHES)]
    batches = {name: np.stack([part.mean[name] for part in parts]) for name in parts[0].mean}
    typical = np.stack([peaks(alpha, batches["log"].mean(0))] + [
        peaks(alpha, np.delete(batches["log"], i, 0).mean(0)) for i in range(BATCHES)
    ])  # fmt: skip
    typical_error = jackknife(typical[1:])
    entry, left_out = _entries(spec, sizes)
    typical[0, LARGEST], typical_error[LARGEST] = entry, jackknife(left_out)
    misfits = np.array([_misfit(sizes, each) for each in (entry, *left_out)])
    data = {
        "n": sizes, "alpha": alpha, "few": few, "typical": typical[0],
        "typical_error": typical_error, "misfit": misfits[0], "misfit_error": jackknife(misfits[1:]),
        "homogeneous": np.max([part.maximum["homogeneous"] for part in parts]),
        **_reader(spec.seed), **_longest(spec.seed),
        "ends": _ends(spec.seed), "sixth_sparsity": _sixth_sparsity(), "half_l1": _half_l1(spec.seed),
    }  # fmt: skip
    for name in ("norm", "trace", "product", "power", "softmax", "usual", "largest", "later"):
        data[name] = batches[name].mean(0)
    for name in ("norm", "trace", "power", "softmax", "usual", "later"):
        data[f"{name}_error"] = batches[name].std(0, ddof=1) / BATCHES**0.5
    return data


def _row(sizes: np.ndarray, alpha: np.ndarray, few: np.ndarray, best: np.ndarray):
    """Everything that one row of scores has to say; it is cut into at most BLOCKS rows of each smaller size."""
    at_five = int(np.abs(alpha - HIGH).argmin())

    def one(key: jax.Array) -> dict[str, jax.Array]:
        scores = jax.random.normal(key, (int(sizes[-1]),))
        grid = jnp.asarray(alpha, scores.dtype)
        parts = [scores.reshape(-1, 1, int(n))[:BLOCKS] for n in sizes]
        every = [jnp.stack([norm(part, grid) for norm in NORMS]) for part in parts]  # (norm, block, α) for each size
        norms = jnp.stack([each.mean(1) for each in every], 1)
        logs = jnp.stack([jnp.log(jnp.maximum(each, SMALLEST)).mean(1) for each in every], 1)
        middle, some = parts[-2], jnp.asarray(few, scores.dtype)
        trace = jnp.stack([scale.jacobian_trace(middle, some, name).mean(0) for name in NORMALISERS])
        product = jnp.stack([(weights * middle).sum(-1).mean(0) for weights in _weights(middle, some)])
        power = [scale.power_gradient_norm(part).mean() for part in parts]
        tripled = [3 * scale.power_gradient_norm(3 * part).mean() for part in parts]
        softmax = [scale.gradient_norm(part, float(a)).mean() for part, a in zip(parts, best, strict=True)]
        usual = [scale.gradient_norm(part, 1.0).mean() for part in parts]
        return {
            "norm": norms, "log": logs, "trace": trace, "product": product,
            "power": jnp.stack(power), "homogeneous": jnp.abs(jnp.stack(tripled) / jnp.stack(power) - 1),
            "softmax": jnp.stack(softmax), "usual": jnp.stack(usual),
            "largest": jnp.stack([part.max(-1).mean() for part in parts]),
            "later": norms[1][:, -2] - norms[1][:, at_five],
        }  # fmt: skip

    return one


def _entries(spec: Spec, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale of the largest typical largest entry of softmax's Jacobian by size, and the same without each batch.

    The largest entry is α p(1 − p) of the largest weight p = 1/Σ e^{α(s − max s)}: where p is above a half, every other
    weight is below 1 − p.
    """
    rng, alpha = np.random.default_rng([spec.seed, 3]), np.geomspace(1.2, 14, 21)
    logs = np.empty((BATCHES, sizes.size, alpha.size))
    for at, n in enumerate(sizes):
        for batch in range(BATCHES):
            below = rng.standard_normal((max(spec.entries // int(n) // BATCHES, 4), int(n)), np.float32)
            top = below.argmax(1)[:, None]
            below -= np.take_along_axis(below, top, 1)
            np.put_along_axis(below, top, -np.inf, 1)  # its own term is the 1 that is taken from 1/p
            over = np.stack([np.exp(np.float32(a) * below).sum(1, dtype=float) for a in alpha], 1)  # 1/p − 1
            logs[batch, at] = np.mean(np.log(alpha) + np.log(np.maximum(over, SMALLEST)) - 2 * np.log1p(over), 0)
    every = peaks(alpha, logs.mean(0))
    return every, np.stack([peaks(alpha, np.delete(logs, batch, 0).mean(0)) for batch in range(BATCHES)])


def _weights(scores: jax.Array, alpha: jax.Array) -> list[jax.Array]:
    return [
        jax.nn.softmax(alpha[None, :, None] * scores, axis=-1),
        scale.entmax15(scores, alpha),
        scale.sparsemax(scores, alpha),
    ]


def _misfit(n: np.ndarray, optima: np.ndarray) -> float:
    """Of the better of c log n and c √log n."""
    return min(float(scale.relative_residual(n.astype(float), optima, law)) for law in ("log", "sqrt_log"))


def _half_l1(seed: int) -> np.ndarray:
    """½Σ|∂p_i/∂s_j| by automatic differentiation over α(1 − Σp²), rows of normal scores at three scales."""
    scores = np.random.default_rng(seed).normal(size=(16, 64))

    def ratio(row: jax.Array, alpha: jax.Array) -> jax.Array:
        jacobian = jax.jacobian(lambda s: jax.nn.softmax(alpha * s))(row)
        return jnp.sum(jnp.abs(jacobian)) / 2 / scale.gradient_norm(row, alpha)

    every = jax.vmap(jax.vmap(ratio, (0, None)), (None, 0))
    with jax.enable_x64(True):  # rows come near one-hot, where float32 has few digits of 1 − Σp²
        return np.asarray(jax.jit(every)(jnp.asarray(scores), jnp.array([0.1, 2.0, 8.0])))


def _reader(seed: int) -> dict[str, np.ndarray]:
    """Largest entries of two Jacobians, and how slopes change with the input's scale.

    By automatic differentiation, but for the sixth power's entries of many scores.
    """
    rng = np.random.default_rng([seed, 1])

    def power(x: jax.Array) -> jax.Array:
        return x**6 / jnp.sum(x**6)

    # softmax at scales from near 0 on, for 2 to 64 scores; the sixth power of a quarter of the scores
    rows = [jnp.asarray(rng.normal(size=(3072, n)), jnp.float32) for n in (2, 8, 64)]
    scales = jnp.geomspace(0.01, 8, 25)
    entries = jax.jit(
        jax.vmap(jax.vmap(lambda s, a: jnp.abs(jax.jacobian(jax.nn.softmax)(a * s)).max(), (None, 0)), (0, None))
    )
    softmax = max(float(entries(each[:48], scales).max()) for each in rows)
    jacobians = [jax.vmap(jax.jacobian(lambda x: power(x / 4)))(each) for each in rows[1:]]
    more = [rng.normal(size=(rows[0].shape[0], n)).astype(np.float32) for n in NEAR[2:]]  # past those of `rows`
    # slopes by s of f(a s), which f(a x) = f(x) makes the same at every a
    free = {
        "x⁶/Σx⁶": power,
        "x/√(mean of x²)": lambda x: x / jnp.sqrt(jnp.mean(x**2)),
        "|x|/Σ|x|": lambda x: jnp.abs(x) / jnp.sum(jnp.abs(x)),
        "softmax of x over its deviation": lambda x: jax.nn.softmax(x / jnp.std(x)),
    }
    s = rows[-1][0]
    slopes = [[jax.jacobian(lambda s, f=f, a=a: f(a * s))(s) for a in (1.0, 3.0)] for f in free.values()]
    return {
        "quarter": np.asarray(softmax),
        "near_one": np.stack(
            [np.asarray(jnp.abs(each).max((1, 2))) for each in jacobians] + [_largest_of_sixth(each) for each in more]
        ),
        "near_one_signed": np.stack([np.asarray(each.max((1, 2))) for each in jacobians]),
        "scale_free": np.array([float(jnp.abs(b - a).max() / jnp.abs(a).max()) for a, b in slopes]),
    }


def _largest_of_sixth(s: np.ndarray) -> np.ndarray:
    """Largest magnitude of an entry 6 y_i(δ_ij − y_j)/s_j of every row's Jacobian, y = s⁶/Σs⁶.

    It is on the diagonal: no other y_i is above 1 − y_j.
    """
    sixth = s**6
    y = sixth / sixth.sum(1, keepdims=True)
    return (6 * y * (1 - y) / np.abs(s)).max(1)


def _longest(seed: int) -> dict[str, np.ndarray]:
    """½‖J‖₁ at the largest n of the article's programs, by definition, with errors: s⁶, softmax at 1 and at α*."""
    s = np.random.default_rng([seed, 2]).normal(size=(64, LONGEST))
    sixth = s**6 / (s**6).sum(1, keepdims=True)
    best = float(scale.optimal_scale_exact(LONGEST))
    every = [6 * (sixth * (1 - sixth) / np.abs(s)).sum(1)]
    for alpha in (1.0, best):
        weights = np.exp(alpha * s)
        weights = weights / weights.sum(1, keepdims=True)
        every.append(alpha * (1 - (weights**2).sum(1)))
    return {"longest": np.mean(every, 1), "longest_error": np.std(every, 1, ddof=1) / len(s) ** 0.5}


def _ends(seed: int) -> np.ndarray:
    """Gradient of rows of 64 normal scores at α = 0.001 and at 40 over the top gap, over its largest: (end, row)."""
    rows = np.random.default_rng(seed).normal(size=(64, 64))
    top = np.sort(rows, axis=1)
    gap = (top[:, -1] - top[:, -2])[:, None]
    alpha = np.concatenate([np.full_like(gap, 1e-3), np.geomspace(0.1, 10, 41) / gap, 40 / gap], axis=1)
    weights = np.exp(alpha[..., None] * (rows - top[:, -1:])[:, None])
    p = weights / weights.sum(-1, keepdims=True)
    gradient = alpha * (p * (weights.sum(-1, keepdims=True) - weights) / weights.sum(-1, keepdims=True)).sum(-1)
    return (gradient[:, [0, -1]] / gradient.max(1, keepdims=True)).T


def _sixth_sparsity() -> np.ndarray:
    """E|a|/√E a² of a = (x + ε)⁶ for normal ε and each x of SIXTH, by quadrature that is exact for polynomials."""
    node, weight = np.polynomial.hermite_e.hermegauss(13)
    score = SIXTH[:, None] + node
    return (weight * score**6).sum(1) / np.sqrt((weight * score**12).sum(1) * weight.sum())


def plot(data: Data) -> Figure:
    """Means against α, typical optima against n, three normalisers, and the sixth power."""
    drawing, axes = style.figure(columns=2, rows=2)
    for panel, ax in zip((_means, _optima, _normalisers, _power), axes, strict=True):
        panel(ax, data)
    return drawing


def _means(ax: Axes, data: Data) -> None:
    n, alpha = int(data["n"][-2]), data["alpha"]
    for i, name in enumerate(NAMES):
        _points(ax, alpha, data["norm"][i, -2], data["norm_error"][i, -2], i, name, line=True)
    top = float(data["largest"][-2])
    ax.set_ylim(-0.2, 1.8 * top)
    _level(ax, alpha[0], top, "E max s")
    _level(ax, alpha[0], top / 2, "½ E max s")
    title = f"No size has a best scale, n = {n}"
    style.panel(ax, "α, scale of the scores", "mean size of the Jacobian", title, log="x", legend="upper left")


def _optima(ax: Axes, data: Data) -> None:
    n = data["n"]
    ax.axhspan(LOW, HIGH, color=style.colour("published"), alpha=0.1, linewidth=0)
    ax.annotate("“1 to 5”", (n[0], HIGH - 0.05), color=style.colour("published"), fontsize=9, va="top")
    for i, name in enumerate(NAMES):
        _points(ax, n, data["typical"][i], data["typical_error"][i], i, name)
    line = np.geomspace(n[0], n[-1], 60)
    ax.plot(line, np.sqrt(2 * np.log(line)), color=style.colour("theory"), label="α$_c$ = √(2 log n)")
    ax.plot(line, scale.optimal_scale_exact(line), color=style.colour("reference"), dashes=(5, 2), label="annealed α*")
    ax.set_ylim(0.8, 9.8)
    height, title = "α that maximises the mean logarithm", "What suits a typical row"
    style.panel(ax, "n, number of keys", height, title, log="x", legend="upper left", columns=2)


def _normalisers(ax: Axes, data: Data) -> None:
    alpha = data["few"]
    for i, name in enumerate(TITLES):
        look = style.cycle(i)
        ax.plot(alpha, data["product"][i], color=look["color"], linestyle=look["linestyle"])
        _points(ax, alpha, data["trace"][i], data["trace_error"][i], i, name)
    _level(ax, alpha[0], float(data["largest"][-2]), "E max s")
    title = f"Points: E tr J, lines: E Σ p s, n = {data['n'][-2]}"
    style.panel(ax, "α, scale of the scores", "mean trace of the Jacobian", title, log="x", legend="lower right")


def _power(ax: Axes, data: Data) -> None:
    n = data["n"]
    for i, (name, label) in enumerate((("power", "s⁶/Σs⁶, any scale"), ("softmax", "softmax at the annealed α*"))):
        _points(ax, n, data[name], data[f"{name}_error"], i, label)
    line = np.geomspace(n[0], n[-1], 60)
    annealed = np.asarray(scale.annealed_power_gradient(line))
    ax.plot(line[annealed > 1], annealed[annealed > 1], color=style.colour("theory"), label="2.553 − 81.7/n")
    height, title = "mean ½‖J‖₁ for standard normal scores", "The sixth power against softmax"
    style.panel(ax, "n, number of keys", height, title, log="x", legend="lower right")


def _points(
    ax: Axes, x: np.ndarray, y: np.ndarray, error: np.ndarray, index: int, label: str, line: bool = False
) -> None:
    """Points with bars of two standard errors."""
    look = style.cycle(index)
    joined = look["linestyle"] if line else "none"
    ax.errorbar(x, y, 2 * error, color=look["color"], marker=look["marker"], linestyle=joined, label=label)


def _level(ax: Axes, x: float, y: float, text: str) -> None:
    """A horizontal guide named below its left end."""
    style.reference(ax, y=y)
    look = {"fontsize": 9, "va": "top", "color": style.colour("reference")}
    ax.annotate(text, (x, y), xytext=(0, -3), textcoords="offset points", **look)
