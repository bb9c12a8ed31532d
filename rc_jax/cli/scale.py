"""`rc-jax scale`: typical, annealed and exact optimum for each number of keys, or for each length of a decoder."""

import math
from typing import Any

import jax
import numpy as np

from rc_jax import scale, special
from rc_jax._numerics.text import in_columns
from rc_jax.cli.arguments import Report, Usage, bounded, digits, number_or_none, whole
from rc_jax.diagnostics.implied_scale import mean_entropy

LARGEST_N = 10**15  # exact in double precision
LARGEST_DIM = 1e6
LARGEST_SAMPLES = 10**6
DRAWN = 2**21  # cosines that a mean entropy is taken over


def run(arguments: Any) -> Report:
    """Answer for every N."""
    given = _check(arguments)
    dim, samples = arguments.cosine_dim, arguments.samples
    with jax.enable_x64(True):
        sizes = [float(scale.effective_keys(n)) for n in given] if arguments.decoder else given

    def optima(n: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        return scale.optimal_scale(n, dim), None if dim is not None else scale.optimal_scale_exact(n)

    # The closed forms in double precision, the simulation in JAX's own.
    with jax.enable_x64(True):
        annealed, exact = jax.tree.map(np.asarray, jax.jit(optima)(np.array(sizes, float)))
    key = jax.random.key(arguments.seed, impl="threefry2x32")
    rows = []
    for index, n in enumerate(sizes):
        rows_of = round(n)  # a simulated row has a whole number of keys
        typical = jax.jit(lambda key, n=rows_of: scale.typical_optimum(key, n, dim, samples))(key) if samples else None
        rows.append(_row(n, arguments, float(annealed[index]), None if exact is None else float(exact[index]), typical))
        rows[-1]["usual"] = _usual(given[index], arguments)
    problems = [
        f"the {kind} optimum was not found for n = {row['n']}"
        for row in rows
        for kind in ("annealed", "typical")
        if row[kind] is not None and not row[kind]["converged"]
    ]
    result = {
        "scores": "gaussian" if dim is None else "cosine",
        "decoder": arguments.decoder,
        "dim": dim,
        "head_dim": arguments.head_dim,
        "samples": samples,
        "seed": arguments.seed,
        "results": rows,
    }
    if arguments.decoder:
        rows[:] = [{"length": length, **row} for length, row in zip(given, rows, strict=True)]
    return Report(_text(arguments, rows), result, tuple(problems))


def _check(arguments: Any) -> list[int]:
    if not arguments.n:
        raise Usage("`N` must be given: rc-jax scale N [N …]")
    sizes = [whole("N", text, 2, LARGEST_N) for text in arguments.n]
    if arguments.cosine_dim is not None:
        bounded("--cosine-dim", arguments.cosine_dim, 3, LARGEST_DIM)
        if arguments.head_dim is not None:
            raise Usage("`--head-dim` must be left out for cosine scores (`--cosine-dim`), which need no 1/√d_k")
    if arguments.head_dim is not None:
        bounded("--head-dim", arguments.head_dim, 1)
    if arguments.samples < 2 and arguments.samples != 0:
        raise Usage(f"`--samples` must be 0 or >= 2, got {arguments.samples}")
    bounded("--samples", arguments.samples, 0, LARGEST_SAMPLES)
    bounded("--seed", arguments.seed, 0, 2**32 - 1)
    return sizes


def _row(n: int | float, arguments: Any, alpha: float, exact: float | None, typical: Any) -> dict[str, Any]:
    # The search is tested to this rounding error.
    rounding = 4 * float(np.finfo(float).eps) * (4 + 2 * math.log(n)) * alpha
    gaussian = arguments.cosine_dim is None
    logits: dict[str, Any] = {"multiplier": number_or_none(alpha), "of": "q.k/sqrt(d_k)" if gaussian else "cos(q,k)"}
    logits["usual_multiplier"] = 1.0 if gaussian else math.sqrt(arguments.cosine_dim)
    if arguments.head_dim is not None:
        logits["factor_on_q_dot_k"] = number_or_none(alpha / math.sqrt(arguments.head_dim))
        logits["usual_factor_on_q_dot_k"] = 1 / math.sqrt(arguments.head_dim)
    annealed = {
        "scale": number_or_none(alpha),
        "rounding_error": number_or_none(rounding),
        "converged": math.isfinite(alpha),
    }
    row: dict[str, Any] = {"n": n, "annealed": annealed, "exact": None, "typical": None, "logits": logits}
    if exact is not None:
        row["exact"] = {"scale": number_or_none(exact), "formula": "sqrt(W0(n sqrt(e)/2) - 1/2)"}
    if typical is not None:
        row["typical"] = {
            "scale": number_or_none(typical.scale),
            "standard_error": number_or_none(typical.standard_error),
            "mean_log_objective": number_or_none(typical.value),
            "samples": arguments.samples,
            "converged": bool(typical.converged),
        }
    return row


def _usual(n: int, arguments: Any) -> dict[str, float | None]:
    """What the usual scale does with n random keys: H/log n, and the weight of one perfect key among them.

    Of a decoder of n rows: the mean H/log i of rows i from 2 on, and that weight in its last row, where it is least.
    Logits of the usual scale have variance one. A cosine cannot pass 1, so that the logit of a key equal to its query
    is √d.
    """
    dim = arguments.cosine_dim
    sizes = np.array([float(n)])
    if arguments.decoder:  # H/log i of the rows between these is taken from a line
        sizes = np.unique(np.round(np.concatenate([np.arange(2, 32), np.geomspace(2, n, 32)])))
        sizes = sizes[sizes <= n]
    if dim is None:
        entropies = np.asarray(mean_entropy(1.0, sizes)) / np.log(sizes)
    else:
        rng = np.random.default_rng(arguments.seed)
        entropies = np.array([_cosine_entropy(rng, int(size), dim, DRAWN // sizes.size) for size in sizes])
    # The mean over rows: trapezoids whose sides are whole rows.
    counts, shares = np.diff(sizes), (entropies[1:] + entropies[:-1]) / 2
    total = float(np.sum(counts * shares)) + (entropies[0] + entropies[-1]) / 2
    entropy = total / (sizes[-1] - sizes[0] + 1)
    most = None if dim is None else _perfect_key(np.random.default_rng(arguments.seed), n, dim)
    return {"relative_entropy": float(entropy), "perfect_key_weight": most}


def _cosine_entropy(rng: np.random.Generator, n: int, dim: float, drawn: int) -> float:
    """Mean H/log n of rows of n cosines times √d: of this many drawn, and annealed where rows are too long to draw."""
    if n > DRAWN:
        with jax.enable_x64(True):
            return float(scale.annealed_entropy(math.sqrt(dim), float(n), dim)) / math.log(n)
    cosines = _cosines(rng, n, dim, drawn)
    weights = np.exp(math.sqrt(dim) * cosines)
    totals = weights.sum(1)
    entropy = np.log(totals) - math.sqrt(dim) * (weights * cosines).sum(1) / totals
    return float(entropy.mean()) / math.log(n)


def _perfect_key(rng: np.random.Generator, n: int, dim: float) -> float:
    """Mean weight of a key equal to its query among n − 1 random ones: drawn, and with E e^{√d cos} in long rows."""
    if n - 1 > DRAWN:
        with jax.enable_x64(True):
            others = math.log(n - 1) + float(special.log_hyp0f1(dim / 2, dim / 4))
        return 1 / (1 + math.exp(others - math.sqrt(dim)))
    cosines = _cosines(rng, max(n - 1, 1), dim, DRAWN)
    others = np.exp(math.sqrt(dim) * (cosines - 1)).sum(1) if n > 1 else np.zeros(1)
    return float(np.mean(1 / (1 + others)))


def _cosines(rng: np.random.Generator, n: int, dim: float, drawn: int) -> np.ndarray:
    """Rows of n cosines of random vectors, so many of them in all."""
    return 2 * rng.beta((dim - 1) / 2, (dim - 1) / 2, (max(drawn // n, 1), n)) - 1


def _text(arguments: Any, rows: list[dict[str, Any]]) -> str:
    dim, head_dim = arguments.cosine_dim, arguments.head_dim
    # Columns depend on what was asked for; the typical optimum stands first, because it is the one to take.
    lines = []
    for row in rows:
        cells = {"L": str(row["length"])} if arguments.decoder else {}
        cells["n"] = f"{row['n']:.4f}".rstrip("0").rstrip(".") if row["n"] < 1000 else f"{row['n']:.0f}"
        annealed, typical = row["annealed"]["scale"], row["typical"]
        if typical is not None:
            cells["typical ± s.e."] = f"{digits(typical['scale'], 5)} ± {digits(typical['standard_error'], 2)}"
        cells["annealed"] = digits(annealed, 7)
        if dim is not None:
            cells["usual √d"] = digits(math.sqrt(dim), 7)
        if head_dim is not None:
            # The same scales as factors on q·k, beside the usual one.
            width = math.sqrt(head_dim)
            if typical is not None:
                cells["on q·k: typical"] = digits(number_or_none(typical["scale"] / width), 5)
            cells["annealed on q·k"] = digits(row["logits"]["factor_on_q_dot_k"], 7)
            cells["usual 1/√d_k"] = digits(1 / width, 7)
        lines.append(cells)
    rendered = in_columns(list(lines[0]), [list(cells.values()) for cells in lines])
    law = "Gaussian scores q·k/√d_k" if dim is None else f"cosine scores, d = {dim:g}"
    use, usual = ("q·k/√d_k", "1") if dim is None else ("cos(q, k)", "√d")
    simulated = f"; typical: {arguments.samples} simulated rows, seed {arguments.seed}" if arguments.samples else ""
    whole_n = ", and a simulated row has the whole number of keys next to it" if arguments.samples else ""
    rows_of = f"n is the geometric mean of the keys that rows 2 … L see{whole_n}.\n" if arguments.decoder else ""
    advice = " If you change it, take the typical one." if arguments.samples else ""
    count = 3 if dim is None else 2  # of cosines it is simulated
    entropies, most = (
        ", ".join(digits(row["usual"][name], count) for row in rows)
        for name in ("relative_entropy", "perfect_key_weight")
    )
    whose = "its rows" if arguments.decoder else "random rows"
    end = ", in the last row." if arguments.decoder else ", and on average no key gets more."
    reached = "." if dim is None else f";\na key equal to its query gets about {most} of the weight{end}"
    return (
        f"Scale α* of most softmax gradient, {law}{simulated}\n\n{rendered}\n\n{rows_of}"
        f"Each α* multiplies {use}; the usual scale there is {usual}. Keep it unless you can compare trainings:\n"
        f"these are optima of random rows, and say nothing of trained quality.{advice}\n"
        f"At the usual scale expect H/log n = {entropies} of {whose}{reached}"
    )
