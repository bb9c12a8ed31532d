"""Random networks over every option that `collapse.log_residuals` covers, with tokens and weights over wide ranges."""

import jax
import numpy as np

from rc_jax import attention, network
from rc_jax.collapse.exact.rules import RULES


def draw_spec(random, kinds=tuple(RULES)):
    """A network of small layers with options drawn one by one, again and again until they go together.

    Its weights are one of `kinds`: by default those that cancellation-free arithmetic has a form of its own for.
    """
    while True:
        try:
            return _spec(random, kinds)
        except ValueError:
            continue


def _pick(random, *options):
    return options[random.integers(len(options))]


def _spec(random, kinds):
    def rarely(value, probability=0.2):
        return value if random.random() < probability else None

    layer = {
        "d_model": int(random.integers(1, 7)),
        "heads": int(random.integers(1, 4)),
        "d_head": int(random.integers(1, 5)),
        "scores": _pick(random, "dot", "dot", "dot", "dot", "cosine"),
        "weights": _pick(random, *kinds),
        "causal": bool(random.random() < 0.25),
        "window": rarely(int(random.integers(0, 3))),
        "top_k": rarely(int(random.integers(1, 4))),
        "bias": bool(random.random() < 0.4),
        "rotary": rarely(attention.Rotary(base=_pick(random, 10.0, 10000.0))),
        "qk_norm": rarely(_pick(random, "rms", "rms_joint", "layer", "unit"), 0.3),
        "qk_norm_epsilon": _pick(random, 1e-6, 1e-2),
        "scale_law": _pick(random, "constant", "constant", "constant", "log_tokens"),
        "scale": rarely(_pick(random, 0.3, 2.0, 8.0)),
        "soft_cap": rarely(_pick(random, 0.5, 2.0, 20.0, 50.0), 0.3),
        "output_gate": rarely(_pick(random, "elementwise", "headwise")),
    }
    if layer["weights"] == "sinkhorn":
        layer["sinkhorn_steps"] = _pick(random, 1, 3, 5)
    if random.random() < 0.05:
        layer |= {"rank": int(random.integers(1, 4)), "tokens": int(random.integers(2, 7))}
        layer |= dict.fromkeys(("window", "top_k", "rotary", "qk_norm", "soft_cap")) | {
            "causal": False,
            "scale_law": "constant",
            "scores": "dot",
        }
    spec = attention.AttentionSpec(**layer)
    depth = int(random.integers(2, 9))
    stack = {
        "attention": spec,
        "depth": depth,
        "skip": bool(random.random() < 0.3),
        "norm": _pick(random, None, None, "pre", "post", "branch", "peri"),
        "norm_epsilon": _pick(random, 1e-12, 1e-5, 0.3),
        "norm_kind": _pick(random, "layer", "rms"),
    }
    if random.random() < 0.4:
        kind = _pick(random, "relu", "tanh", "silu", "gelu", "gelu_tanh")
        stack["mlp"] = network.MLPSpec(width=_pick(random, 3, 6, 9), activation=kind, gated=bool(random.random() < 0.4))
        stack["parallel"] = bool(random.random() < 0.2)
    if random.random() < 0.1 and spec.rank is None:
        stack["local"] = attention.AttentionSpec(**layer | _pick(random, {"window": 1}, {"scale": 1.7}))
        stack["local_layers"] = tuple(index for index in range(depth) if random.random() < 0.5) or (0,)
    return network.StackSpec(**stack)


def draw(random, spec, dtype, tokens=None):
    """Parameters, tokens, a scale and a mask; some of them in the special positions where digits are lost."""
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), spec, bias_std=0.3, dtype="float32"))
    gain, deviation = 10 ** random.uniform(-0.7, 0.5), 10 ** random.uniform(-1.5, 0.3)

    def entries(path, leaf):
        name = jax.tree_util.keystr(path[-1:]).strip(".[]'")
        normal = random.normal(size=leaf.shape)
        if name in ("scale", "query_norm", "key_norm"):
            return 1 + 0.3 * normal
        if name == "subtracted":
            return _pick(random, 0.8, 1.0, 1 - 1e-6, 0.2) + np.zeros(leaf.shape)
        if name == "pool":
            averages = random.multinomial(64, np.full(leaf.shape[-1], 1 / leaf.shape[-1]), leaf.shape[:-1]) / 64
            return averages if random.random() < 0.5 else normal
        if "bias" in name or name in ("shift", "sink"):
            return deviation * normal * (3 if name == "sink" else 1)
        return gain * normal / np.sqrt(leaf.shape[-2])

    params = jax.tree_util.tree_map_with_path(entries, shapes)
    if random.random() < 0.08:
        params = params._replace(attention=params.attention._replace(key=params.attention.query))
    n, d = spec.attention.tokens or tokens or int(random.integers(2, 7)), spec.attention.d_model
    size = 10 ** random.uniform(-4, 2.3) if random.random() < 0.5 else 10 ** random.uniform(-0.5, 0.7)
    x = random.normal(size=(n, d))
    place = random.random()
    if place < 0.1:
        x = x * 10 ** random.uniform(-6, 0) + random.normal(size=d)  # near each other
    elif place < 0.2:
        x[-1] = x[0]  # two equal tokens
    elif place < 0.25:
        x[0] = 0
    elif place < 0.3:
        x = x - x.mean(axis=0)
    elif place < 0.35:
        x = np.round(3 * x)
    scale, kind = None, random.random()
    if kind < 0.25:
        scale = np.asarray(10 ** random.uniform(-1, 1), dtype)
    elif kind < 0.4:
        scale = (10 ** random.uniform(-0.7, 0.7, spec.attention.heads)).astype(dtype)
    mask = None
    if random.random() < 0.15 and spec.attention.rank is None:
        mask = (random.random((n, n)) < 0.6) | np.eye(n, dtype=bool)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    return params, (size * x).astype(dtype), scale, mask


def options(spec):
    """The names under which a network is counted."""
    layer = spec.attention
    names = {layer.kind.name}
    names |= {
        name
        for name in ("bias", "causal", "window", "top_k", "rank", "rotary", "soft_cap", "output_gate")
        if getattr(layer, name) not in (None, False)
    }
    names |= {f"qk_norm {layer.qk_norm}"} if layer.qk_norm else set()
    names |= {"cosine"} if layer.scores == "cosine" else set()
    names |= {"log_tokens"} if layer.scale_law != "constant" else set()
    names |= {"top_k = 1"} if layer.top_k == 1 else set()
    names |= {"d_model = 1"} if layer.d_model == 1 else set()
    names |= {"d_head = 1"} if layer.score_width == 1 else set()
    names |= {"skip" if spec.skip else "no skip"}
    names |= {f"norm {spec.norm} {spec.norm_kind}"} if spec.norm else {"no norm"}
    names |= {f"mlp {spec.mlp.activation}{' gated' if spec.mlp.gated else ''}"} if spec.mlp else {"no mlp"}
    return names | ({"parallel"} if spec.parallel else set()) | ({"local"} if spec.local else set())


def judge(computed, right, digits):
    """Two masks over the layers: what is wrong, and what is NaN though known; unknown numbers of the reference pass.

    Wrong is a finite number off by more than 0.02 nats and a thousandth of the logarithm, −∞ for a finite number, and
    a finite number for −∞. Below 10^(−digits) the reference has no digits.
    """
    computed, right = np.asarray(computed, float), np.asarray(right, float)
    lowest = -2.2 * digits
    known = ~np.isnan(right) & ((right > lowest) | np.isneginf(right))
    with np.errstate(invalid="ignore"):
        near = (computed == right) | (abs(computed - right) <= np.maximum(0.02, 1e-3 * abs(right)))
        near |= (computed < lowest) & (np.isneginf(right) | (right < lowest))
    return known & ~near & ~np.isnan(computed), known & np.isnan(computed)
