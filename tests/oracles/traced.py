"""A BERT-shaped network and what `rc-jax trace` says of it, in plain NumPy, from the published tensors."""

import numpy as np
from scipy.special import erf
from scipy.stats import chi


def forward(tensors, config, ids, *, causal=False, skip=True, mlp=True):
    """Hidden states (depth + 1 of them), and logits and attention of each layer, (head, n, n)."""
    tensors = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]

    def linear(at, x):
        return x @ tensors[f"{at}.weight"].T + tensors[f"{at}.bias"]

    def norm(at, x):
        centred = x - x.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)
        return centred / deviation * tensors[f"{at}.weight"] + tensors[f"{at}.bias"]

    table = {name: tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    x = norm("embeddings.LayerNorm", table["word"][ids] + table["position"][: len(ids)] + table["token_type"][0])
    states, logits, weights = [x], [], []
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        scores, p = attention_of(tensors, config, layer, x, causal=causal)
        value = linear(f"{at}attention.self.value", x).reshape(len(ids), heads, -1).transpose(1, 0, 2)
        mixed = (p @ value).transpose(1, 0, 2).reshape(len(ids), -1)
        x = norm(f"{at}attention.output.LayerNorm", linear(f"{at}attention.output.dense", mixed) + skip * x)
        if mlp:
            inner = linear(f"{at}intermediate.dense", x)
            inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
            x = norm(f"{at}output.LayerNorm", linear(f"{at}output.dense", inner) + skip * x)
        states.append(x)
        logits.append(scores)
        weights.append(p)
    return states, logits, weights


def rank(matrix):
    """exp of the entropy of the singular values."""
    share = np.linalg.svd(matrix, compute_uv=False)
    share = share[share > 0] / share.sum()
    return np.exp(-(share * np.log(share)).sum())


def of_states(states):
    """By observable, one number per state."""
    measures = {
        "relative_residual_1inf": [],
        "relative_residual_frobenius": [],
        "log_residual": [],
        "effective_rank": [],
    }
    for x in states:
        rest = x - x.mean(axis=0)
        both = [np.sqrt(np.abs(each).sum(axis=0).max()) * np.sqrt(np.abs(each).sum(axis=1).max()) for each in (rest, x)]
        measures["relative_residual_1inf"].append(both[0] / both[1])
        measures["relative_residual_frobenius"].append(np.linalg.norm(rest) / np.linalg.norm(x))
        measures["log_residual"].append(np.log(np.linalg.norm(rest)))
        measures["effective_rank"].append(rank(x))
    return {name: np.array(values) for name, values in measures.items()}


def of_heads(logits, weights, best, *, causal=False):
    """By observable, (layer, head); row by row, over the tokens that a row sees. `best(n)` is α*."""
    names = ("sparsity", "entropy", "relative_entropy", "effective_rank", "implied_scale", "scale_ratio")
    measures = {name: np.zeros((len(weights), len(weights[0]))) for name in names}
    for layer, (each_logits, each_weights) in enumerate(zip(logits, weights, strict=True)):
        for head, (scores, p) in enumerate(zip(each_logits, each_weights, strict=True)):
            rows = []
            for i in range(1 if causal else 0, len(p)):
                n = i + 1 if causal else len(p)
                seen, row = scores[i, :n], p[i, :n]
                entropy = -sum(weight * np.log(weight) for weight in row if weight > 0)
                spread = np.std(seen, ddof=1)
                expected = best(n) * chi.mean(n - 1) / np.sqrt(n - 1)  # of Gaussian logits of scale α*
                rows.append([row.mean() / np.sqrt((row**2).mean()), entropy, entropy / np.log(n)])
                rows[-1] += [spread, spread / expected]
            means = np.mean(rows, axis=0)
            for name, value in zip((*names[:3], *names[4:]), means, strict=True):
                measures[name][layer, head] = value
            measures["effective_rank"][layer, head] = rank(p)
    return measures


def of_paths(tensors, config, x, weights_of):
    """Shares of the output and of its residual by length, of attention with skips and without MLP and norms.

    `weights_of(layer, x)` is P. With a factor t on every head that is passed, the output is a polynomial in t with the
    sums over paths for coefficients: read off its values at roots of unity.
    """
    tensors = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    heads, depth = config["num_attention_heads"], config["num_hidden_layers"]
    turns = np.exp(2j * np.pi * np.arange(depth + 1) / (depth + 1))
    values, real = [x.astype(complex) for _ in turns], x
    for layer in range(depth):
        at = f"encoder.layer.{layer}.attention."
        p = weights_of(layer, real)

        def branch(y, at=at, p=p):
            value = (y @ tensors[f"{at}self.value.weight"].T).reshape(len(x), heads, -1)
            constant = tensors[f"{at}self.value.bias"].reshape(heads, -1)
            mixed = np.stack([p[h] @ (value[:, h] + constant[h]) for h in range(heads)], axis=1)
            return mixed.reshape(len(x), -1) @ tensors[f"{at}output.dense.weight"].T

        bias = tensors[f"{at}output.dense.bias"]
        values = [y + t * branch(y) + bias for t, y in zip(turns, values, strict=True)]
        real = real + branch(real) + bias
    sums = np.real(np.fft.fft(np.stack(values), axis=0)) / (depth + 1)
    np.testing.assert_allclose(sums.sum(axis=0), real, rtol=1e-9, atol=1e-9 * np.abs(real).max())
    rests = sums - sums.mean(axis=1, keepdims=True)
    return {
        name: (parts * parts.sum(axis=0)).sum(axis=(1, 2)) / (parts.sum(axis=0) ** 2).sum()
        for name, parts in (("share", sums), ("residual_share", rests))
    }


def attention_of(tensors, config, layer, x, *, causal=False):
    """Logits and P of one layer for given tokens, (head, n, n)."""
    tensors = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    heads, at = config["num_attention_heads"], f"encoder.layer.{layer}.attention.self."
    query, key = (
        (x @ tensors[f"{at}{role}.weight"].T + tensors[f"{at}{role}.bias"]).reshape(len(x), heads, -1)
        for role in ("query", "key")
    )
    scores = np.einsum("ihk,jhk->hij", query, key) / np.sqrt(query.shape[-1])
    hidden = np.where(np.tri(len(x), dtype=bool) | (not causal), scores, -np.inf)
    p = np.exp(hidden - hidden.max(axis=-1, keepdims=True))
    return scores, p / p.sum(axis=-1, keepdims=True)
