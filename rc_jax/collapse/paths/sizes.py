"""Sizes and residuals of paths, as logarithms that are right however little a path leaves of the tokens' differences.

The arithmetic is that of `rc_jax.collapse.paths.terms`: right to a few roundings, and NaN where it is not. P are those
that the forward pass computes; a network that multiplies its own roundings has other ones in other precisions.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Integer, Key

from rc_jax._numerics import arguments
from rc_jax.attention import AttentionParams, masks
from rc_jax.attention.layer import check_scale_and_mask
from rc_jax.collapse.exact import decide
from rc_jax.collapse.exact.moves import AMOUNTS, COPY, Moves, of_tokens
from rc_jax.collapse.exact.state import Weights
from rc_jax.collapse.paths import terms as path_terms
from rc_jax.collapse.paths.sums import SKIP, check_decomposes, check_paths, draw_paths, unless_unknown
from rc_jax.collapse.paths.terms import Term
from rc_jax.collapse.requirements import check_split
from rc_jax.network import Layers, StackSpec
from rc_jax.network.specification import check_stack

_BATCH = 64


class PathShares(NamedTuple):
    """What the paths of each length 0 … L add to the output X^L; Y_k is the sum of those of length k.

    Attributes:
        log_norm: log ‖Y_k‖_F, nats.
        log_residual: log ‖res(Y_k)‖_F, nats; NaN where roundings leave less than two digits of the residual.
        share: ⟨Y_k, X^L⟩/‖X^L‖_F². Adds up to 1; negative where Y_k points against the output.
        residual_share: ⟨res(Y_k), res(X^L)⟩/‖res(X^L)‖_F², the share of what tells tokens apart. Adds up to 1.
    """

    log_norm: Float[Array, " length"]
    log_residual: Float[Array, " length"]
    share: Float[Array, " length"]
    residual_share: Float[Array, " length"]


class PathSizes(NamedTuple):
    """Single paths and the sizes of their terms T = P···P X W···W: at the start and after each layer, to the last one.

    Attributes:
        paths: for each layer the head that the path takes, or −1 where it takes the skip connection.
        log_norm: log ‖T‖_F, nats.
        log_residual: log ‖res(T)‖_F, nats; NaN where roundings leave less than two digits of the residual.
    """

    paths: Integer[Array, "path layer"]
    log_norm: Float[Array, "path layer+1"]
    log_residual: Float[Array, "path layer+1"]


@arguments.guard(x=arguments.tokens, scale=arguments.positive, mask=masks.check_mask)
def path_shares(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
) -> PathShares:
    """Size, residual and share of the output of all paths of each length together, at any depth.

    The recursion of `path_length_sums`, with every Y_k in mean–residual form, so that a residual keeps its digits
    however small it is, in collapsed networks without skip connections too. log ‖Y_k‖_F includes the paths that start
    at a bias; they leave no residual.

    Args:
        params: from `network.init` or `network.random_layers`.
        x: at least two tokens.
        spec: the network, without MLP and LayerNorm.
        scale: α of every layer, as in `network.apply`; may be traced.
        mask: of every layer, as in `log_residuals`.

    Returns:
        `PathShares`, depth + 1 numbers each: logarithms are −inf where there is nothing (a length without paths, tokens
        that are equal or whose weights differ by less than the smallest number). `residual_share` is NaN where the
        output's tokens are all equal; any share is NaN where moved roundings move it by more than 0.01.

    Raises:
        ValueError: a network with an MLP, LayerNorm, or another weight than softmax of products or cosines, for which
            the residual has no form free of cancellation (`path_length_sums` takes any).

    Source: this package's own result, on the decomposition of DCL21, sections 2 and 3.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=4), depth=12, skip=True)
        >>> params = network.init(jax.random.key(0), spec)
        >>> shares = path_shares(params, jax.random.normal(jax.random.key(1), (8, 16)), spec)
        >>> round(float(shares.share.sum()), 4), bool(shares.log_residual[-1] < shares.log_norm[-1] - 5)
        (1.0, True)
    """
    _check_exact(spec)
    check_stack(params, x, spec)
    check_scale_and_mask(scale, mask, x, spec.attention)
    return _path_shares(params, x, spec, scale, mask)


@arguments.guard(x=arguments.tokens, length=arguments.integer(0), scale=arguments.positive, mask=masks.check_mask)
def sample_path_log_residuals(
    key: Key[Array, ""],
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    length: int,
    samples: int,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
) -> PathSizes:
    """Sizes of single paths of one length, drawn uniformly: which layers they go through, and which head of each.

    The term of a path is (P_{h_k}^{l_k} ··· P_{h_1}^{l_1}) X (W_{h_1}^{l_1} ··· W_{h_k}^{l_k}) with l_1 < … < l_k,
    later layers on the left, P as in the forward pass of the whole network. Biases have no part in it.

    Args:
        key: a typed key.
        params: from `network.init` or `network.random_layers`.
        x: at least two tokens.
        spec: the network, without MLP and LayerNorm.
        length: number of heads on the path; without skip connections that is the depth.
        samples: number of paths, drawn with replacement.
        scale: α of every layer, as in `network.apply`; may be traced.
        mask: of every layer, as in `log_residuals`.

    Source: this package's own result, on the decomposition of DCL21, sections 2 and 3.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=4), depth=12, skip=True)
        >>> params = network.init(jax.random.key(0), spec)
        >>> x = jax.random.normal(jax.random.key(1), (8, 16))
        >>> drawn = sample_path_log_residuals(jax.random.key(2), params, x, spec, 5, 100)
        >>> drawn.log_residual.shape, set((drawn.paths >= 0).sum(axis=1).tolist())
        ((100, 13), {5})
    """
    if not (length <= spec.depth if spec.skip else length == spec.depth):
        wanted = (
            f"at most depth={spec.depth}" if spec.skip else f"depth={spec.depth}, for there are no skip connections"
        )
        raise ValueError(f"`length` must be {wanted}, got {length}")
    paths = draw_paths(key, spec.depth, spec.attention.heads, jnp.asarray(length), samples)
    return path_log_sizes(params, x, spec, paths, scale=scale, mask=mask)


@arguments.guard(x=arguments.tokens, scale=arguments.positive, mask=masks.check_mask)
def path_log_sizes(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    paths: Integer[Array | np.ndarray, "path layer"],
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
) -> PathSizes:
    """Sizes of given single paths, exact at any depth.

    Args:
        params: from `network.init` or `network.random_layers`.
        x: at least two tokens.
        spec: the network, without MLP and LayerNorm.
        paths: one row per path; for each layer, first to last, a head 0 … H − 1, or −1 for the skip connection. Sizes
            from a layer on where a traced path takes what the network does not have are NaN.
        scale: α of every layer, as in `network.apply`; may be traced.
        mask: of every layer, as in `log_residuals`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=4), depth=3, skip=True)
        >>> params = network.init(jax.random.key(3), spec)
        >>> x = jax.random.normal(jax.random.key(1), (8, 16))
        >>> sizes = path_log_sizes(params, x, spec, jnp.array([[-1, -1, -1], [3, -1, 0]]))
        >>> sizes.log_norm.shape, bool(jnp.allclose(sizes.log_norm[0], jnp.log(jnp.linalg.norm(x))))
        ((2, 4), True)
        >>> bool(sizes.log_residual[1, -1] < sizes.log_residual[1, 0] - 3)
        True
    """
    _check_exact(spec)
    check_stack(params, x, spec)
    check_scale_and_mask(scale, mask, x, spec.attention)
    check_paths(paths, spec)
    return _path_log_sizes(params, x, spec, jnp.asarray(paths), scale, mask)


@functools.partial(jax.jit, static_argnames="spec")
def _path_shares(params: Layers, x: Array, spec: StackSpec, scale: ArrayLike | None, mask: Array | None) -> PathShares:
    layer = spec.attention
    start = path_terms.term(x)
    nothing = path_terms.constant(jnp.zeros_like(start.mean.rows), x.shape[0])
    by_length = jax.tree.map(lambda *leaves: jnp.stack(leaves), start, *[nothing] * spec.depth)

    def run(amount: Array) -> tuple[Term, Term]:
        moves = Moves(amount, tokens)

        def advance(terms: Term, weights: AttentionParams, frozen: Weights) -> tuple[Term, None]:
            longer = jax.vmap(lambda term: path_terms.through(frozen, weights, term, layer, moves))(terms)
            parts = [jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), longer)]  # the longest was nothing
            if spec.skip:
                parts.append(terms)
            if layer.bias:
                here, passed = path_terms.from_biases(weights, layer)
                means = jnp.zeros_like(terms.mean.rows).at[0].set(here).at[1].set(passed)
                parts.append(jax.vmap(lambda mean: path_terms.constant(mean, x.shape[0]))(means))
            return jax.vmap(path_terms.add)(*parts), None

        return path_terms.scan(advance, by_length, params, x, spec, scale, mask, moves)[:2]

    tokens, amounts = of_tokens(x), jnp.asarray(AMOUNTS, x.dtype)
    terms, states = jax.vmap(run, axis_name=COPY)(amounts)
    log_norms = jax.vmap(jax.vmap(path_terms.log_norm))(terms)
    share, residual_share = jax.vmap(_shares)(terms, states)
    return PathShares(
        decide.first(log_norms),
        decide.first(terms.difference.log_size),
        decide.first(share),
        decide.first(residual_share),
    )


def _shares(terms: Term, state: Term) -> tuple[Float[Array, " length"], Float[Array, " length"]]:
    """What each length adds to the output, and to the output's difference."""
    n = jnp.asarray(state.difference.rows.shape[0], state.difference.rows.dtype)
    output = path_terms.total(terms)
    log_square = 2 * path_terms.log_norm(output)
    from_means = n * jnp.exp(terms.mean.log_size + output.mean.log_size - log_square)
    share = from_means * jnp.sum(terms.mean.rows * output.mean.rows[None], axis=(1, 2))
    # Against the difference as the network carries it, not as the sum of the lengths gives it.
    lengths, whole = terms.difference, state.difference
    overlap = jnp.sum(lengths.rows * whole.rows[None], axis=(1, 2))
    share = share + jnp.exp(lengths.log_size + whole.log_size - log_square) * overlap
    return share, jnp.exp(lengths.log_size - whole.log_size) * overlap


@functools.partial(jax.jit, static_argnames="spec")
def _path_log_sizes(
    params: Layers, x: Array, spec: StackSpec, paths: Array, scale: ArrayLike | None, mask: Array | None
) -> PathSizes:
    layer = spec.attention
    start = path_terms.term(x)
    each = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (paths.shape[0], *leaf.shape)), start)

    def sizes(terms: Term) -> tuple[Array, Array]:
        return jax.vmap(path_terms.log_norm)(terms), terms.difference.log_size

    def run(amount: Array) -> tuple[Array, Array]:
        moves = Moves(amount, tokens)

        def advance(
            carry: tuple[Array, Term], weights: AttentionParams, frozen: Weights
        ) -> tuple[tuple[Array, Term], tuple[Array, Array]]:
            index, terms = carry
            only = weights._replace(query_bias=None, key_bias=None, value_bias=None, output_bias=None)

            def move(path: tuple[Term, Array]) -> Term:
                # The weights of the head that the path takes; where it takes none, the term stays as it is.
                term, head = path
                alone, rows = jax.tree.map(
                    lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, jnp.maximum(head, 0), 1) if leaf.ndim else leaf,
                    (only, frozen),
                )
                moved = path_terms.through(rows, alone, term, layer, moves)
                return jax.tree.map(lambda new, old: jnp.where(head == SKIP, old, new), moved, term)

            terms = jax.lax.map(move, (terms, paths[:, index]), batch_size=_BATCH)
            return (index + 1, terms), sizes(terms)

        by_layer = path_terms.scan(advance, (jnp.asarray(0), each), params, x, spec, scale, mask, moves)[2]
        return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]).T, sizes(each), by_layer)

    tokens, amounts = of_tokens(x), jnp.asarray(AMOUNTS, x.dtype)
    log_norm, log_residual = jax.vmap(run, axis_name=COPY)(amounts)
    passed = jnp.cumprod(jnp.pad(unless_unknown(paths, spec, x.dtype), ((0, 0), (1, 0)), constant_values=1), axis=1)
    return PathSizes(paths, decide.first(log_norm) * passed, decide.first(log_residual) * passed)


def _check_exact(spec: StackSpec) -> None:
    """Raise unless residuals of paths have a form that is free of cancellation."""
    check_decomposes(spec)
    only = "residuals of paths are exact for that alone, `path_length_sums` takes any"
    check_split(spec, dict.fromkeys(("weights", "top_k", "rank"), only))
