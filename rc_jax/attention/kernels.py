"""From scores to weights: every row of scores becomes a row of weights over the tokens that it may see.

softmax            e^s / Σ e^s                 positive, rows sum to 1
l2                 e^s / √Σ e^(2s)             positive, squares of a row sum to 1
signed             ±e^|s| / Σ e^|s|            sign of s, magnitudes of a row sum to 1 (Lv et al. 2024); 0 where s = 0
relu_squared       max(s, 0)² / Σ max(s, 0)²   non-negative, rows sum to 1; a row without a positive score is 0
relu_squared_mean  max(s, 0)² / m, m seen      non-negative, rows do not sum to 1 (Hua et al. 2022, in Su's form)
power6             s⁶ / Σ s⁶                   non-negative, rows sum to 1; a row of zero scores is 0
identity           s / m, m tokens seen        signed, rows do not sum to 1 (linear attention without features)
linear             s / Σ s, s = φ(q)·φ(k)      non-negative, rows sum to 1 (Katharopoulos et al. 2020, with elu + 1)
softmax_plus_one   e^s / (1 + Σ e^s)           positive, rows sum to less than 1 (Miller 2023, "off by one")
softmax_sink       e^s / (e^b + Σ e^s)         the same with a learned logit b of each head (OpenAI 2025, "gpt-oss")
sigmoid            1 / (1 + n e^(−s))          positive, rows of any sum (Ramapuram et al. 2024: bias −log n); n columns
differential       softmax(s) − λ softmax(s′)  signed, rows sum to 1 − λ (Ye et al. 2024); scores s, s′ of two halves
sinkhorn           u_i e^s v_j                 positive, rows sum to 1, columns nearly so (Sander et al. 2022)

Weights that decay with distance:

decay              λ^|i−j| / Σ λ^|i−j|         positive, rows sum to 1, blind to the scores (Sun et al. 2023's decay)
gated_decay        Π_{t=j+1..i} λ_t / Σ Π λ_t  positive, rows sum to 1, λ_t = sigmoid(x_t·w + b) (as in Lin et al. 2025)
channel_decay      Σ_c φ(q_i)_c φ(k_j)_c λ_c^(i−j) over its row sum: Yang et al. 2023's gated linear attention with
                   gates that do not depend on the token, and with rows that sum to 1

The weights of gates and of channels are products of factors ≤ 1 from the key's token to the query's. They are carried
from row to row, in n sequential steps: as quotients of products from the first token on they would overflow, and as
differences of sums of logarithms they would lose digits in long rows.

Hua et al. 2022 ("Transformer quality in linear time", GAU) square after dividing, max(s/m, 0)²; Su Jianlin
(kexue.fm/archives/8934) divides the square. The first is the second with a `scale` 1/√m times as large.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rc_jax._numerics.dtypes import working_dtype

Rows = Float[Array, "head token column"]
Mask = Bool[Array, "#head token column"]


def softmax(scores: Rows, mask: Mask | None) -> Rows:
    """e^s over its row sum, shifted by the row maximum."""
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1)


def relu_squared(scores: Rows, mask: Mask | None) -> Rows:
    """max(s, 0)² over its row sum."""
    return _over_sum(jnp.square(_to_unit(jax.nn.relu(scores), mask)))


def l2(scores: Rows, mask: Mask | None) -> Rows:
    """e^s over the Euclidean norm of its row, shifted by the row maximum: softmax over its own Euclidean norm."""
    weights = softmax(scores, mask)
    return weights * jax.lax.rsqrt(jnp.sum(jnp.square(weights), axis=-1, keepdims=True))


def signed(scores: Rows, mask: Mask | None) -> Rows:
    """sign(s) e^|s| over the row sum of e^|s|, shifted by the largest |s|; a score of 0 counts for nothing."""
    counted = scores != 0
    counted = counted if mask is None else counted & mask
    size = jnp.where(counted, jnp.abs(scores), -jnp.inf)
    empty = ~jnp.any(counted, axis=-1, keepdims=True)
    return jnp.sign(scores) * jnp.where(empty, 0, jax.nn.softmax(jnp.where(empty, 0, size), axis=-1))


def relu_squared_mean(scores: Rows, mask: Mask | None) -> Rows:
    """max(s, 0)² over the number of tokens seen."""
    return identity(jnp.square(jax.nn.relu(scores)), mask)


def power6(scores: Rows, mask: Mask | None) -> Rows:
    """s⁶ over its row sum; the scale of the scores drops out."""
    return _over_sum(_to_unit(scores, mask) ** 6)


def identity(scores: Rows, mask: Mask | None) -> Rows:
    """The scores themselves, over the number of tokens seen."""
    if mask is None:
        return scores / scores.shape[-1]
    seen = jnp.sum(mask, axis=-1, keepdims=True).astype(scores.dtype)
    return jnp.where(mask, scores, 0) / seen


def linear(scores: Rows, mask: Mask | None) -> Rows:
    """Non-negative similarities over their row sum."""
    return _over_sum(_to_unit(scores, mask))


def softmax_plus_one(scores: Rows, mask: Mask | None) -> Rows:
    """e^s over one more than its row sum: softmax with one more logit, 0, whose weight goes nowhere."""
    return softmax_sink(scores, mask, jnp.zeros(scores.shape[:1], scores.dtype))


def softmax_sink(scores: Rows, mask: Mask | None, sink: Float[Array, " head"]) -> Rows:
    """e^s over e^b plus its row sum, with a logit b of each head, shifted by the largest of them all."""
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    sink = sink[:, None, None]
    top = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), sink))
    powers = jnp.exp(scores - top)
    return powers / (jnp.exp(sink - top) + jnp.sum(powers, axis=-1, keepdims=True))


def sigmoid(scores: Rows, mask: Mask | None) -> Rows:
    """1/(1 + e^(−(s − log n))), n the number of columns, hidden ones too: one bias for all rows, as in the source."""
    weights = jax.nn.sigmoid(scores - math.log(scores.shape[-1]))
    return weights if mask is None else jnp.where(mask, weights, 0)


def differential(
    scores: Float[Array, "heads token column"],
    mask: Bool[Array, "1 token column"] | None,
    subtracted: Float[Array, " head"],
) -> Rows:
    """Softmax of the first half of the rows' heads less λ times that of the second half."""
    first, second = jnp.split(softmax(scores, mask), 2)
    return first - subtracted[:, None, None] * second


def sinkhorn(scores: Rows, mask: Mask | None, steps: int) -> Rows:
    """e^s with rows and columns in turn divided by their sums, in logarithms; an odd number of steps ends with rows."""
    logs = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
    for step in range(steps):
        logs = jax.nn.log_softmax(logs, axis=-2 if step % 2 else -1)
    return jnp.exp(logs)


def decay(rate: Float[Array, " head"], n: int, mask: Mask | None) -> Rows:
    """λ^|i−j| over its row sum, one λ in (0, 1] per head."""
    index, fade = jnp.arange(n), jnp.log(rate.astype(working_dtype(rate.dtype)))
    distance = jnp.abs(index[:, None] - index[None, :]).astype(fade.dtype)
    return softmax(fade[:, None, None] * distance[None], mask).astype(rate.dtype)


def gated_decay(logits: Float[Array, "head token"], mask: Mask) -> Rows:
    """Π_{t=j+1..i} λ_t over its row sum, with λ_t = 1/(1 + e^(−logit_t)); the mask is causal."""
    steps = jax.nn.log_sigmoid(logits.astype(working_dtype(logits.dtype)))
    index = jnp.arange(logits.shape[1])

    # Row i of the exponents Σ_{t=j+1..i} log λ_t is the row before plus log λ_i.
    def row(exponents: Array, token: tuple[Array, Array]) -> tuple[Array, Array]:
        i, step = token
        exponents = jnp.where((index < i)[None], exponents + step[:, None], 0)
        return exponents, exponents

    exponents = jax.lax.scan(row, jnp.zeros_like(steps), (index, steps.T))[1]
    return softmax(jnp.swapaxes(exponents, 0, 1), mask).astype(logits.dtype)


def channel_products(
    query: Float[Array, "head token width"],
    key: Float[Array, "head token width"],
    rate: Float[Array, "head width"],
    precision: str,
) -> Rows:
    """Σ_c q_ic k_jc λ_c^(i−j) for j ≤ i, one λ in (0, 1] for each channel; 0 above the diagonal."""
    query, key, fade = (array.astype(working_dtype(rate.dtype)) for array in (query, key, rate))
    index = jnp.arange(query.shape[1])

    # Row i carries k_jc λ_c^(i−j) for j ≤ i, and 0 beyond.
    def row(faded: Array, token: tuple[Array, Array]) -> tuple[Array, Array]:
        i, query_row = token
        faded = jnp.where((index == i)[None, :, None], key, fade[:, None] * faded)
        return faded, jnp.einsum("hk,hjk->hj", query_row, faded, precision=precision)

    rows = jax.lax.scan(row, jnp.zeros_like(key), (index, jnp.swapaxes(query, 0, 1)))[1]
    return jnp.swapaxes(rows, 0, 1).astype(rate.dtype)


def log_products(
    query: Float[Array, "head token width"],
    key: Float[Array, "head column width"],
    rate: Float[Array, "head width"] | None = None,
) -> Rows:
    """The logarithm of Σ_c e^(q_ic + k_jc) λ_c^max(i−j, 0), in float32 at least; without a rate λ = 1.

    Products of exponentials are never taken, so neither size nor distance of queries and keys matters. A few rows at a
    time, so that there are never more than 8·head·column·width numbers, and once more where there is a gradient.
    """
    query, key = (array.astype(working_dtype(key.dtype)) for array in (query, key))
    fade = None if rate is None else jnp.log(rate.astype(key.dtype))[:, None]
    index = jnp.arange(key.shape[1])

    def row(token: tuple[Array, Array]) -> Array:
        i, query_row = token
        logs = query_row[:, None] + key
        if fade is not None:
            logs = logs + fade * jnp.maximum(i - index, 0).astype(key.dtype)[None, :, None]
        return jax.nn.logsumexp(logs, axis=-1)

    tokens = jnp.arange(query.shape[1]), jnp.swapaxes(query, 0, 1)
    rows = jax.lax.map(jax.checkpoint(row, prevent_cse=False), tokens, batch_size=8)
    return jnp.swapaxes(rows, 0, 1)


def largest(scores: Rows, mask: Mask | None, k: int) -> Bool[Array, "head token column"]:
    """True at the k largest scores of each row among those that it sees, and at scores equal to the k-th."""
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    if k >= scores.shape[-1]:
        return scores > -jnp.inf
    last = jax.lax.top_k(jax.lax.stop_gradient(scores), k)[0][..., -1:]
    return (scores >= last) & (scores > -jnp.inf)


def _to_unit(scores: Rows, mask: Mask | None) -> Rows:
    """Rows divided by their largest magnitude, so that powers neither overflow nor underflow; hidden entries 0."""
    if mask is not None:
        scores = jnp.where(mask, scores, 0)
    largest = jnp.max(jnp.abs(scores), axis=-1, keepdims=True)
    return scores / jax.lax.stop_gradient(jnp.where(largest > 0, largest, 1))


def _over_sum(weights: Rows) -> Rows:
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


FROM_SCORES: dict[str, Callable[[Rows, Mask | None], Rows]] = {
    "softmax": softmax,
    "l2": l2,
    "signed": signed,
    "relu_squared": relu_squared,
    "relu_squared_mean": relu_squared_mean,
    "power6": power6,
    "identity": identity,
    "linear": linear,
    "channel_decay": linear,
    "softmax_plus_one": softmax_plus_one,
    "sigmoid": sigmoid,
}


def elu_plus_one(x: Array) -> Array:
    """One more than x above 0, e^x below: jax.nn.elu(x) + 1 would cancel to 0 far below."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


# What queries and keys of linear attention pass through, each without a negative value.
FEATURES: dict[str, Callable[[Array], Array]] = {
    "elu": elu_plus_one,  # Katharopoulos et al. 2020, eq. 7
    "relu": jax.nn.relu,
    "softplus": jax.nn.softplus,
    "exp": jnp.exp,
    "squared_relu": lambda x: jnp.square(jax.nn.relu(x)),
}
