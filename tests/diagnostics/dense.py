"""The measures written again from their definitions, row by row, in NumPy and float64."""

import numpy as np

# What float32 costs: means over rows of sums over keys of numbers that are right to a few roundings.
CLOSE = dict(rtol=3e-5, atol=3e-6)


def softmax(logits):
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def gaussian(seed, shape, alpha=1.0, causal=False):
    """Softmax of independent Gaussian logits of deviation α, in float64."""
    logits = alpha * np.random.default_rng(seed).standard_normal(shape)
    return softmax(np.where(np.tri(shape[-1], dtype=bool), logits, -np.inf) if causal else logits)


def head(p, seen, dtype=np.float32):
    """All measures of one matrix whose row i may look where seen[i]; rows with fewer than two keys do not count.

    The numerical rank is that of the matrix in `dtype`.
    """
    rows = []
    for row, inside in zip(p, seen, strict=True):
        a = row[inside]
        if len(a) < 2:
            continue
        entropy = -sum(x * np.log(x) for x in a if x > 0)
        rows.append(
            {
                "sparsity": np.mean(np.abs(a)) / np.sqrt(np.mean(a**2)),
                "entropy": entropy,
                "relative_entropy": entropy / np.log(len(a)),
                "participation": 1 / np.sum((a / a.sum()) ** 2),
                "largest_weight": a.max(),
            }
        )
    measures = {name: np.mean([row[name] for row in rows]) for name in rows[0]}
    several = [i for i in range(len(p)) if seen[i].sum() >= 2]
    measures["self_weight"] = np.mean([p[i, i] for i in several])
    measures["previous_weight"] = np.mean([p[i, i - 1] for i in several if i])
    # Importance of key k: the mean of A_ik over the queries i that may see k.
    importance = np.array([p[seen[:, k], k].mean() if seen[:, k].any() else np.nan for k in range(len(p))])
    candidates = [k for k in range(len(p)) if 2 * seen[:, k].sum() >= seen.sum(0).max()]
    strongest = max(candidates, key=lambda k: importance[k])
    measures |= {"sink_weight": importance[0], "sink_rate": float(importance[0] > 0.3)}
    measures |= {"strongest_key": strongest, "strongest_weight": importance[strongest]}
    measures |= {"strongest_share": 1.0, "strongest_first": float(strongest == 0)}  # of a single text
    spectrum = np.linalg.svd(np.where(seen, p, 0), compute_uv=False)
    measures["second_singular_value"] = spectrum[1] / spectrum[0]
    measures["stable_rank"] = np.sum(spectrum**2) / spectrum[0] ** 2
    measures["numerical_rank"] = np.linalg.matrix_rank(np.where(seen, p, 0).astype(dtype))
    return measures


def state(x):
    """The measures of one token matrix."""
    residual = x - x.mean(0)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(len(x)) for j in range(len(x)) if i != j]
    spectrum = np.linalg.svd(x, compute_uv=False)
    return {
        "relative_residual": np.linalg.norm(residual) / np.linalg.norm(x),
        "cosine": np.mean(pairs),
        "absolute_cosine": np.mean(np.abs(pairs)),
        "token_rank": np.sum(spectrum**2) / spectrum[0] ** 2,
    }
