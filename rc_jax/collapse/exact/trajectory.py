"""The distance of the tokens from each other after every layer, as a logarithm that is right at any depth.

Every result is computed as it is and twice with moved roundings (`rc_jax.collapse.exact.moves`). A residual can depend
on digits that no floating-point number stores: on weights of a saturated softmax below the smallest number, or on what
tells tokens of one cluster apart beside the distance between clusters. Such a result moves by far more than a rounding,
and NaN is returned in its place and at all later layers.
Tokens of one cluster may have rounded to the same numbers. So in every layer each token moves by a few roundings of its
own; only tokens that are equal in `x`, and see the same columns, move together.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt

from rc_jax._numerics import arguments
from rc_jax.attention import AttentionParams, masks
from rc_jax.collapse.exact import attention, decide, mlp_and_norms, rules
from rc_jax.collapse.exact import state as mean_residual
from rc_jax.collapse.exact.moves import AMOUNTS, COPY, STILL, Moves, moved
from rc_jax.collapse.exact.moves import of_tokens as moves_of_tokens
from rc_jax.collapse.exact.scaled import Scaled
from rc_jax.collapse.exact.state import MeanResidual
from rc_jax.collapse.requirements import check_split
from rc_jax.network import LayerParams, Layers, NormParams, StackSpec
from rc_jax.network.specification import check_stack
from rc_jax.network.stack import Arithmetic, block, check_every_mask, scan_kinds


@arguments.guard(x=arguments.tokens, scale=arguments.positive, mask=masks.check_mask)
def log_residuals(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
    relative: bool = False,
    check: bool = True,
) -> Float[Array, " layer"]:
    """The logarithms log ‖res(X^l)‖_F (nats) before the first layer and after each one, exact at any depth.

    Plain arithmetic subtracts the mean from tokens that agree in all their digits: float32 has no digit left after 2 to
    3 layers and float64 after 3 or 4. Here the tokens are carried as a mean and a scaled difference, and every sublayer
    maps the difference without a cancellation: full attention to its cube, the others to first order
    (`rc_jax.collapse.exact.attention`, `rc_jax.collapse.exact.mlp_and_norms`; this package's own result). The relative
    error is a few roundings times the conditioning of the network itself, however small the residual, and it is
    differentiable.

    With `relative=True` the logarithms are log ‖res(X^l)‖_F/‖X^l‖_F, at most 0, where ‖X‖_F² = n ‖x̄‖² + ‖res(X)‖_F².
    That is the size which DCL21's figures show, there in the norm of `norm_1inf`. With skip connections the tokens
    themselves grow, and so does ‖res‖; the relative residual says whether they become alike.

    Covers softmax attention on dot products or cosines with any heads, biases, masks, `top_k` and `rank`, rotary
    positions, `qk_norm` and `scale_law`, with or without skip connections, MLPs (gated ones, and `parallel` ones),
    LayerNorm or RMSNorm at any place, and layers of two kinds. Rotary positions are of first order like the masks
    (`rc_jax.collapse.exact.positions`). A `soft_cap`, an `output_gate` and the weights `softmax_plus_one`,
    `softmax_sink`, `sigmoid`, `differential` and `sinkhorn` have rules of their own (`rc_jax.collapse.exact.rules`);
    every other kind, one's own too, goes by the generic rule (`rc_jax.collapse.exact.any_kind`).

    A residual that this dtype cannot decide is NaN, and so are those of all later layers and all derivatives of it. It
    is one whose logarithm moves by more than 0.01 nats (or 1024 roundings of itself) when features and tokens move by a
    few roundings before and after every product with a matrix. That is evidence and no proof: computations may agree
    by chance. It happens where softmax is saturated and tokens fall into clusters, where a norm subtracts a
    common part that is far larger than the rest, and where terms cancel for this one set of weights, as those of
    `differential` with λ = 1 under a mask do. It also happens where `top_k` has to choose among logits that are equal
    to rounding, unless their tokens are known to be equal: in `x`, where they see the same columns, or because their
    rows kept equal tokens alone, without rotary positions, and where the scores of a row cancel, as those of a zero
    token do, for a kind of weights without a scale, such as s²/Σs².
    `rc_jax.collapse.certified.log_residuals` encloses such a residual, on the host.
    It is also NaN where a number on the way has no place in the dtype: logits, or squares of the tokens' size, above
    its largest number (tokens of about 1e19 in float32, without a norm), and cosines of tokens below its smallest
    normal number over its rounding (1e-31), or of a zero token beside others, which have no direction. Where the
    tokens' own size counts, it is NaN once they have shrunk below that (gates do it, in float32 after about 100 layers
    without skip connections, norms and biases). At `gain=1` and tokens of ordinary size nothing else of this occurs.

    Args:
        params: from `network.init` or `network.random_layers`.
        x: at least two tokens.
        spec: the network; scores of dot products or cosines, and weights as above.
        scale: α of every layer, a number or one per head; 1/√d_head by default; may be traced.
        mask: of every layer, True where row i may see column j. Where a traced one leaves a row nothing, all is NaN
            after the first layer: such a row has weights of 0, and not the sum of the others.
        relative: whether to divide each residual by the size of its tokens.
        check: whether to compute a result twice, so that unknown ones are NaN. Without it one computation is returned
            as it is, right where `x` and the network are well-conditioned, in about half of the time.

    Returns:
        depth + 1 numbers; −inf where all tokens are equal, NaN where the residual is not known in this dtype.

    Raises:
        NotCovered: additive scores, weights that do not read scores, weights of several score matrices whose levels
            count, cosines with a rank, and mixtures of experts.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=6)
        >>> params = network.init(jax.random.key(0), spec)
        >>> log_norm = log_residuals(params, 0.3 * jax.random.normal(jax.random.key(1), (8, 16)), spec)
        >>> bool(log_norm[-1] < -500)
        True
        >>> import dataclasses, math
        >>> from rc_jax import collapse
        >>> shallow, x = dataclasses.replace(spec, depth=1, skip=True), jax.random.normal(jax.random.key(1), (8, 16))
        >>> params = network.init(jax.random.key(0), shallow)
        >>> share = math.exp(log_residuals(params, x, shallow, relative=True)[-1])  # ‖res‖/‖X‖ of the output
        >>> out = network.apply(params, x, shallow)
        >>> print(abs(share - collapse.frobenius(collapse.residual(out)) / collapse.frobenius(out)) < 1e-5)
        True
    """
    check_split(spec, {}, mixed=True)
    check_stack(params, x, spec)
    check_every_mask(scale, mask, x, spec)
    return _log_residuals(params, x, spec, scale, mask, relative, check)


@arguments.guard(x=arguments.tokens, scale=arguments.positive, mask=masks.check_mask)
def explain(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
    relative: bool = False,
) -> decide.Decided:
    """The numbers of `log_residuals`, and for each that is NaN a sentence that says why and what to do.

    Weight gradients, sizes of paths and `layer_bound` rest on the same tokens and are NaN for the same reasons. It runs
    on the host, in one or two programs of its own: for a question, not for thousands of networks.

    Args:
        params: as `log_residuals` takes them, and so are the others.
        x: at least two tokens.
        spec: the network.
        scale: α of every layer.
        mask: of every layer.
        relative: whether to divide each residual by the size of its tokens.

    Returns:
        Value, depth + 1 numbers, and reason, as many sentences, empty where the number is known.

    Raises:
        NotCovered: as `log_residuals` does.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=8), depth=3)
        >>> params = network.init(jax.random.key(11), spec, gain=6)
        >>> value, reason = explain(params, jax.random.normal(jax.random.key(1), (6, 8)), spec)
        >>> reason[0], reason[-1][:15]
        ('', 'digits are lost')
    """
    check_split(spec, {}, mixed=True)
    check_stack(params, x, spec)
    check_every_mask(scale, mask, x, spec)
    value, causes = _log_residuals(params, x, spec, scale, mask, relative, True, look=True)
    once = functools.partial(_log_residuals, params, x, spec, scale, mask, relative, False)
    return decide.Decided(value, decide.sentences(value, once, causes, jnp.dtype(x.dtype), _traits(spec)))


def looked(
    params: Layers, x: Float[Array, "token feature"], spec: StackSpec
) -> tuple[Float[Array, " layer"], decide.Causes]:
    """The numbers of `log_residuals` and what `reasons` needs to say why some are NaN; may be traced.

    Args:
        params: as `log_residuals` takes them, and so are the others.
        x: at least two tokens.
        spec: the network.
    """
    check_split(spec, {}, mixed=True)
    check_stack(params, x, spec)
    return _log_residuals(params, x, spec, None, None, False, True, look=True)


def reasons(
    value: Float[Array, " layer"],
    causes: decide.Causes,
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
) -> tuple[str, ...]:
    """The sentences of `explain` for what `looked` gave."""
    once = functools.partial(_log_residuals, params, x, spec, None, None, False, False)
    return decide.sentences(value, once, causes, jnp.dtype(x.dtype), _traits(spec))


def _traits(spec: StackSpec) -> decide.Traits:
    generic = [kind.attention.kind for kind in spec.kinds if rules.rule(kind.attention) is rules.generic]
    return decide.Traits(
        softmax=all(rules.rule(kind.attention) is rules.softmax for kind in spec.kinds),
        may_bend=bool(generic),
        may_cancel=not all(kind.shift_invariant for kind in generic),
    )


@functools.partial(jax.jit, static_argnames=("spec", "relative", "check", "look"))
def _log_residuals(
    params: Layers,
    x: Array,
    spec: StackSpec,
    scale: ArrayLike | None,
    mask: Array | None,
    relative: bool,
    check: bool,
    look: bool = False,
) -> Any:
    """The logarithms, and with `look` what the check has seen in each layer."""
    start = mean_residual.decompose(x)
    measure = _log_share if relative else _log_norm
    fades = any(_fades(kind) for kind in spec.kinds)
    places = _places(spec, x.shape[0], mask)
    # Where the largest scores are chosen, equal tokens tie: to the last bit, whatever a compiler rounds.
    chooses = any(kind.attention.top_k is not None for kind in spec.kinds)
    alike = _first_equal(x, places) if chooses else None

    def step_of(kind: StackSpec) -> Callable[[Any, LayerParams], tuple[Any, Any]]:
        makes_equal = _makes_equal(kind, spec)

        def advance(
            state: MeanResidual, weights: LayerParams, moves: Moves, own: Array | None
        ) -> tuple[MeanResidual, Array | None]:
            """The tokens after a layer, and the columns that each row has kept, where that tells which are equal."""
            kept: list[Array] | None = [] if makes_equal else None
            state = moved(state, moves._replace(tokens=own), 0)
            arithmetic = split_arithmetic(kind, x.shape[0], scale, mask, moves, state, kept)
            return block(weights, state, kind, arithmetic), kept[0] if kept else None

        def step(carry: Any, weights: LayerParams) -> tuple[Any, Any]:
            states, known, amounts, equal, own = carry
            if not check:
                out, kept = advance(states, weights, Moves(equal=equal), None)
                return (out, known, amounts, _equal_after(kept, equal, alike, kind), None), measure(out)
            alone, among = (each if equal is None else jnp.take(each, equal, axis=0) for each in (own, tokens))
            out, kept = jax.vmap(
                lambda state, amount: advance(state, weights, Moves(amount, among, equal), alone), axis_name=COPY
            )(states, amounts)
            equal = _equal_after(None if kept is None else kept[0], equal, alike, kind)
            logs = jax.vmap(_log_norm)(out)
            shown = jax.vmap(measure)(out) if relative else logs
            known &= decide.same(out)
            value = decide.first(shown, known)
            # A mean that has faded is not known to the next layer.
            known = known & ~jnp.any(jax.vmap(faded)(out)) if fades else known
            # Layers move to either side in turn: what hides a move in one layer would hide it in all that are like it.
            carry = out, known, -amounts, equal, tokens
            if not look:
                return carry, value
            gone = [jnp.any(jax.vmap(faded)(each)) for each, counts in ((states, fades), (out, relative)) if counts]
            gone = functools.reduce(jnp.logical_or, gone, jnp.asarray(False))
            return carry, (value, decide.Causes(gone, jnp.any(jnp.isnan(out.difference.rows)), shown[0]))

        return step

    stored, first = _stored(x, start), measure(start)[None]
    if not check:
        logs = scan_kinds(step_of, (start, stored, jnp.zeros(len(AMOUNTS), x.dtype), alike, None), params, spec)[1]
        return jnp.where(stored, jnp.concatenate([first, logs]), jnp.nan)
    amounts, copies = jnp.asarray(AMOUNTS, x.dtype), len(AMOUNTS)
    # The tokens' own moves at the start are theirs alone, whatever they see.
    tokens, own = moves_of_tokens(x, places), moves_of_tokens(x)
    states = jax.tree.map(lambda part: jnp.broadcast_to(part, (copies, *part.shape)), start)
    of_layers = scan_kinds(step_of, (states, stored, amounts, alike, own), params, spec)[1]
    logs, causes = of_layers if look else (of_layers, None)
    logs = jnp.concatenate([jnp.where(stored, first, jnp.nan), logs])
    return (logs, causes) if look else logs


def _stored(x: Float[Array, "token feature"], start: MeanResidual) -> Bool[Array, ""]:
    """Whether the tokens differ by more than what numbers below the smallest normal one, taken for 0, may hide."""
    limits = jnp.finfo(x.dtype)
    if limits.nexp < 8:  # float16, whose small numbers are kept because they are computed with in float32
        return jnp.asarray(True)
    return ~mean_residual.has_subnormal(x) | (start.log_norm > math.log(float(limits.tiny / limits.eps)))


def _first_equal(x: Float[Array, "token feature"], places: UInt[Array, "token column"]) -> Int[Array, " token"]:
    """The first token that each token is equal to, and stays equal to because it sees the same columns."""
    both = jnp.all(x[:, None] == x[None], axis=-1) & jnp.all(places[:, None] == places[None], axis=-1)
    return jnp.argmax(both, axis=-1)


def _makes_equal(kind: StackSpec, spec: StackSpec) -> bool:
    """Whether tokens whose rows keep equal tokens alone are equal after a layer of this kind, and tie in the next."""
    layer = kind.attention
    with_positions = any(each.attention.rotary is not None for each in spec.kinds)
    return layer.top_k is not None and layer.rank is None and layer.kind.row_sum != "any" and not with_positions


def _equal_after(
    kept: Bool[Array, "head token column"] | None,
    equal: Int[Array, " token"] | None,
    alike: Int[Array, " token"] | None,
    kind: StackSpec,
) -> Int[Array, " token"] | None:
    """The first token that each token is equal to after a layer.

    It is one of those that keep, in every head, tokens that are all equal to the same one, or of those that were equal
    at the start and see the same columns.
    """
    if kept is None or equal is None or alike is None:
        return alike
    n = equal.shape[0]
    least = jnp.min(jnp.where(kept, equal, n), axis=-1)
    most = jnp.max(jnp.where(kept, equal, -1), axis=-1)
    told = jnp.where(least == most, least, n + jnp.arange(n)).T
    if kind.skip or kind.parallel or kind.attention.output_gate is not None:  # a token's own part comes in
        told = jnp.concatenate([told, equal[:, None]], axis=1)
    told = jnp.take(told, alike, axis=0)
    return jnp.argmax(jnp.all(told[:, None] == told[None], axis=-1), axis=-1)


def _log_norm(state: MeanResidual) -> Float[Array, ""]:
    return state.log_norm


def _log_share(state: MeanResidual) -> Float[Array, ""]:
    """Log ‖res(X)‖_F/‖X‖_F = −½ log(1 + n ‖x̄‖² e^(−2ℓ)); NaN where the mean has no place in the dtype."""
    tokens = state.direction.shape[0]
    log_mean = mean_residual.normalise(jnp.broadcast_to(state.mean, (1, *state.mean.shape))).log_size
    gap = log_mean + 0.5 * math.log(tokens) - state.log_norm
    # Where all tokens are equal the gap is ∞, also for tokens of 0; derivatives do not pass there.
    equal = jnp.isneginf(state.log_norm)
    share = -0.5 * jax.nn.softplus(2 * jnp.where(equal, 0, gap))
    unknown = faded(state) | ~jnp.all(jnp.isfinite(state.mean))
    return jnp.where(unknown, jnp.nan, jnp.where(equal, -jnp.inf, share))


def _fades(spec: StackSpec) -> bool:
    """Whether the size of the tokens' mean counts: gates multiply by it, and hidden units of relu tell its sign."""
    layer = spec.attention
    relu = spec.mlp is not None and spec.mlp.activation == "relu"
    return relu or layer.output_gate is not None or layer.kind.row_sum == "any"


def faded(state: MeanResidual) -> Bool[Array, ""]:
    """True where the mean is so small that it may be the rounded form of many others, and no difference hides it.

    A mean of 0 counts as well, because a product below the smallest number is 0.
    """
    limits, mean = jnp.finfo(state.mean.dtype), jnp.max(jnp.abs(state.mean))
    smallest = float(limits.tiny / limits.eps)
    return (mean < smallest) & (state.log_norm < math.log(smallest)) & jnp.any(state.direction != 0)


def split_arithmetic(
    spec: StackSpec,
    count: int,
    scale: ArrayLike | None,
    mask: Array | None,
    moves: Moves = STILL,
    start: MeanResidual | None = None,
    kept: list[Array] | None = None,
) -> Arithmetic[MeanResidual]:
    """The four operations that `network` wires a layer from, on `count` split tokens in place of token matrices.

    `start` are tokens that have moved already. The columns that each row keeps are put into `kept`, where it is given.
    """
    layer = spec.attention
    seen = masks.combine(count, causal_mask=layer.causal, radius=layer.window, extra=mask)
    scale = attention.known_scale(layer, scale, mask, seen)
    summed = spec.skip and spec.norm not in ("branch", "peri")
    split = mean_residual.summand if summed else mean_residual.from_rows

    def attend(weights: AttentionParams, state: MeanResidual) -> MeanResidual:
        if kept is not None:
            kept.append(attention.chosen(weights, state, layer, scale, seen, moves))
        return attention.attend(weights, state, layer, scale, seen, moves, split)

    def norm(weights: NormParams, state: MeanResidual) -> MeanResidual:
        state = state if state is start else moved(state, moves, 8)
        return mlp_and_norms.norm(weights, state, spec.norm_epsilon, centred=spec.norm_kind == "layer")

    return Arithmetic(
        attend=attend,
        mlp=lambda weights, state: mlp_and_norms.mlp(weights, state, spec, moves, split),
        norm=norm,
        add=mean_residual.add,
    )


def _places(spec: StackSpec, count: int, mask: Array | None) -> UInt[Array, "token column"]:
    """What tells equal tokens apart in a layer: the columns that they see, and their rotary positions."""
    layers = [kind.attention for kind in spec.kinds]
    if any(layer.rotary is not None for layer in layers):
        return jnp.arange(count, dtype=jnp.uint32)[:, None]
    seen = [masks.combine(count, causal_mask=layer.causal, radius=layer.window, extra=mask) for layer in layers]
    shown = [jnp.zeros((count, 0), bool), *(columns for columns in seen if columns is not None)]
    return jnp.concatenate(shown, axis=1).astype(jnp.uint32)


@arguments.guard(x=arguments.tokens)
def product_log_residuals(
    matrices: Float[Array, "depth row column"], x: Float[Array, "token feature"]
) -> Float[Array, "depth+1"]:
    """The logarithms log ‖res(P^l···P¹ X)‖_F (nats) for given row-stochastic matrices, exact at any depth.

    P(1x̄ᵀ + R) = 1x̄ᵀ + PR because rows sum to 1, so the difference is multiplied and its size carried as a logarithm. A
    row p that all rows of P share leaves no difference either, and (P − 1pᵀ)R is formed.
    With matrices that do not depend on X the logarithm falls by a constant per layer (their spectral gap): the
    exponential decay against which pure attention's doubly exponential one is measured.

    Args:
        matrices: P¹ first; rows sum to 1.
        x: at least two tokens.

    Raises:
        ValueError: rows that do not sum to 1.

    Example:
        >>> import jax.numpy as jnp
        >>> half = jnp.array([[[0.75, 0.25], [0.25, 0.75]]])
        >>> steps = product_log_residuals(jnp.repeat(half, 3, axis=0), jnp.array([[1.0], [0.0]]))
        >>> [round(float(step), 4) for step in jnp.diff(steps)]
        [-0.6931, -0.6931, -0.6931]
    """
    n = x.shape[0]
    if matrices.shape[1:] != (n, n):
        raise ValueError(f"`matrices` must have shape (depth, {n}, {n}), got {arguments.describe(matrices)}")
    rows = arguments.on_host(matrices)
    if rows is not None:
        error = float(abs(rows.astype(float).sum(axis=-1) - 1).max())
        if not error <= 4 * n * float(jnp.finfo(matrices.dtype).eps):
            raise ValueError(f"`matrices` must have rows that sum to 1, got one that is off by {error:.3g}")
    return _product_log_residuals(matrices, x)


@jax.jit
def _product_log_residuals(matrices: Array, x: Array) -> Array:
    def step(difference: Scaled, matrix: Array) -> tuple[Scaled, Array]:
        # What all rows share is the same for all tokens: it is taken away before sums round it.
        apart = matrix - matrix[:1]
        product, _ = mean_residual.recenter(jnp.matmul(apart, difference.rows, precision="highest"))
        out = mean_residual.normalise(product).times_exp(difference.log_size)
        return out, out.log_size

    start = mean_residual.decompose(x)
    logs = jax.lax.scan(step, start.over_norm, matrices)[1]
    return jnp.concatenate([start.log_norm[None], logs])
