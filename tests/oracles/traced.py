"""A BERT-shaped network and what `rc-jax trace` says of it, in plain NumPy, from the published tensors."""

import numpy as np
from scipy.special import erf

from tests.diagnostics import dense


def forward(tensors, config, ids, *, causal=False, skip=True, mlp=True):
    """Hidden states (depth + 1 of them), and attention (head, n, n) and values (head, n, width) of each layer."""
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
    states, weights, values = [x], [], []
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        p = attention_of(tensors, config, layer, x, causal=causal)
        value = linear(f"{at}attention.self.value", x).reshape(len(ids), heads, -1).transpose(1, 0, 2)
        mixed = (p @ value).transpose(1, 0, 2).reshape(len(ids), -1)
        x = norm(f"{at}attention.output.LayerNorm", linear(f"{at}attention.output.dense", mixed) + skip * x)
        if mlp:
            inner = linear(f"{at}intermediate.dense", x)
            inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
            x = norm(f"{at}output.LayerNorm", linear(f"{at}output.dense", inner) + skip * x)
        states.append(x)
        weights.append(p)
        values.append(value)
    return states, weights, values


def of_states(states):
    """By measure, one number per state."""
    each = [dense.state(x) for x in states]
    measures = {name: np.array([state[name] for state in each]) for name in each[0]}
    logs = np.log(measures["relative_residual"])
    measures["residual_rate"] = np.array([np.nan, *(logs[1:] - logs[:-1])])
    measures["log_residual"] = np.array([np.log(np.linalg.norm(x - x.mean(axis=0))) for x in states])
    return measures


def of_heads(weights, values, *, causal=False):
    """By measure, (layer, head)."""
    n = weights[0].shape[-1]
    seen = np.tri(n, dtype=bool) if causal else np.ones((n, n), bool)
    measures = {}
    for layer, (p, v) in enumerate(zip(weights, values, strict=True)):
        for head in range(len(p)):
            of = dense.head(p[head], seen)
            sizes = np.linalg.norm(v[head], axis=-1)
            of["sink_value_ratio"] = sizes[0] / sizes[1:].mean()
            first = np.linalg.norm(p[head][:, 0]) * sizes[0]
            of["sink_output_share"] = first / np.linalg.norm(p[head] @ v[head])
            for name, value in of.items():
                measures.setdefault(name, np.zeros((len(weights), len(p))))[layer, head] = value
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
        for name, parts in (("path_share", sums), ("path_residual_share", rests))
    }


def attention_of(tensors, config, layer, x, *, causal=False):
    """P of one layer for given tokens, (head, n, n)."""
    tensors = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    heads, at = config["num_attention_heads"], f"encoder.layer.{layer}.attention.self."
    query, key = (
        (x @ tensors[f"{at}{role}.weight"].T + tensors[f"{at}{role}.bias"]).reshape(len(x), heads, -1)
        for role in ("query", "key")
    )
    scores = np.einsum("ihk,jhk->hij", query, key) / np.sqrt(query.shape[-1])
    hidden = np.where(np.tri(len(x), dtype=bool) | (not causal), scores, -np.inf)
    p = np.exp(hidden - hidden.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)
