"""Published forms of the logit scale as layers, run on random and on trained queries and keys."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.figures.scale.parts._scale_forms import CLAMP, LEARNED, SWIN, TRAINED_AT, log_pairs, yarn
from rc_jax import attention

MORE = 8  # times as many draws of short rows, whose sums are far from normal


class Run(NamedTuple):
    """A layer to be run, its `scale=` (None: its own) and, head by head, which form that is: its key and its α²."""

    spec: attention.AttentionSpec
    scale: np.ndarray | None
    heads: tuple[tuple[str, float], ...]


def runs(n: int, d: int, factors: tuple[int, ...] = ()) -> Iterator[Run]:
    """Every form as a layer for n tokens and heads of width d; YaRN's for each factor."""

    def layer(heads: int = 1, **options: Any) -> attention.AttentionSpec:
        return attention.AttentionSpec(d_model=2 * d, heads=heads, d_head=d, **options)

    # Normalised forms have one scale; cosines and log n have a head for each published factor, whose square over d is
    # the variance of its logits.
    yield Run(layer(), None, (("dot", 1.0),))
    yield Run(layer(qk_norm="rms", qk_norm_epsilon=1e-12), None, (("unit-gain", 1.0),))
    yield Run(layer(qk_norm="layer", qk_norm_epsilon=1e-12), None, (("layer-norm", d / (d - 1)),))
    yield Run(layer(qk_norm="unit"), None, (("unit-gain", 1.0),))
    cosines = np.array([SWIN, CLAMP, log_pairs(n)])
    names = ("swin", "swin-clamp", "log-pairs")
    yield Run(layer(3, scores="cosine"), cosines, tuple(zip(names, cosines**2 / d, strict=True)))
    logs = np.array([1 / np.log(TRAINED_AT), LEARNED, 1.0])
    names = ("log512", "ssmax-learned", "ssmax-one")
    yield Run(layer(3, scale_law="log_tokens"), logs * d**-0.5, tuple(zip(names, (logs * np.log(n)) ** 2, strict=True)))
    for factor in factors:
        rotary = attention.Rotary(scaling="yarn", factor=factor, original_tokens=max(n // factor, 1))
        yield Run(layer(rotary=rotary), None, ((f"yarn-{factor}", float(yarn(factor)) ** 2),))


def halves(spec: attention.AttentionSpec) -> attention.AttentionParams:
    """Parameters by which the first half of a token is its query and the second its key, in every head; gains of 1."""
    shape = (spec.heads, spec.d_model, spec.d_model)
    query, key = (
        jnp.asarray(each, float) for each in np.split(np.broadcast_to(np.eye(spec.d_model), shape), 2, axis=2)
    )
    params = attention.AttentionParams(query, key, query, jnp.swapaxes(query, 1, 2))
    one = jnp.ones((spec.heads, spec.head_width))
    return params.with_parts(query_norm=one, key_norm=one) if spec.qk_norm else params


def every_run(spec: Any, key: jax.Array, dim: int) -> dict[str, np.ndarray]:
    """Every run of the layer on random tokens: its name, n, and the α that its logits have.

    Queries and keys have standard normal entries. α² is the variance over a row's keys, mean over rows and draws.
    """
    columns: dict[str, list] = {name: [] for name in ("run", "run_n", "run_alpha")}
    for size in spec.sizes:
        own = jax.random.fold_in(key, size)
        for run in runs(size, dim, spec.factors if size == spec.sizes[0] else ()):
            # more draws of short rows, whose variances spread more
            draws = spec.draws * max(1, min(MORE, 1024 // size))
            factor = None if run.scale is None else jnp.asarray(run.scale, float)
            squares = []
            for i in range(draws):
                tokens = jax.random.normal(jax.random.fold_in(own, i), (size, run.spec.d_model))
                logits = attention.scores(halves(run.spec), tokens, run.spec, scale=factor)
                squares.append(logits.var(-1, ddof=1).mean(-1))
            columns["run"] += [name for name, _ in run.heads]
            columns["run_n"] += [size] * len(run.heads)
            columns["run_alpha"] += np.sqrt(np.mean(squares, axis=0)).tolist()
    return {name: np.array(value) for name, value in columns.items()}
