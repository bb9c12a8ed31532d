"""The tanh theorem, step by step: rows of logits, total variation, mixtures, and the theorem on a network."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.linear_algebra import spectral_norm
from rc_jax.collapse.audit.inequality import Inequality
from rc_jax.collapse.audit.norms import check_square, compare
from rc_jax.collapse.bounds.pure_attention import check_bounded
from rc_jax.collapse.bounds.tanh import diameters_by_layer, tanh_bound
from rc_jax.collapse.measures import diameter
from rc_jax.network import Layers, StackSpec


@arguments.guard(x=arguments.tokens)
def score_oscillation(weight: Float[Array, "feature feature"], x: Float[Array, "token feature"]) -> Inequality:
    """The largest (x_i − x_i')ᵀA(x_j − x_j') over all four tokens is at most ‖A‖₂ diam(X)².

    The left side is how much more two rows of logits differ at one token than at another; biases drop out of it.

    Args:
        weight: A = α W_QK.
        x: at least two tokens.

    Returns:
        Both sides; slack is right − left.

    Example:
        >>> import jax.numpy as jnp
        >>> step = score_oscillation(0.5 * jnp.eye(1), jnp.array([[3.0], [1.0]]))
        >>> round(float(step.left), 5), round(float(step.right), 5)
        (2.0, 2.0)
    """
    check_square(weight, x)
    rest = x - jnp.mean(x, axis=0, keepdims=True)
    pair = jnp.matmul(rest, jnp.matmul(weight, rest.T, precision="highest"), precision="highest")

    def widest(row: Array) -> Array:
        gap = pair - row[None]
        return jnp.max(jnp.max(gap, axis=1) - jnp.min(gap, axis=1))

    left = jnp.max(jax.lax.map(widest, pair, batch_size=32))
    right = spectral_norm(weight) * jnp.square(diameter(x))
    return Inequality(left, right, right - left)


@arguments.guard()
def total_variation(a: Float[Array, " token"], b: Float[Array, " token"]) -> Inequality:
    """TV(softmax a, softmax b) ≤ tanh(osc(a − b)/4), osc(u) = max u − min u, TV(p, q) = ½ Σ |p − q|.

    osc(a − b) is Hilbert's distance of the two softmaxes; Cohen & Fausti (2023, arXiv 2309.02413) bound total variation
    by it, sharply. docs/proof.md has an elementary proof. Two tokens with opposite
    logits ±δ/4 and ∓δ/4 attain it.

    Args:
        a: logits.
        b: logits, as many.

    Returns:
        Both sides; slack is right − left.

    Example:
        >>> import jax.numpy as jnp
        >>> step = total_variation(jnp.array([0.5, -0.5]), jnp.array([-0.5, 0.5]))
        >>> round(float(step.left), 6), round(float(step.right), 6)
        (0.462117, 0.462117)
    """
    if a.shape != b.shape:
        raise ValueError(f"`b` must have as many logits as `a`, {a.shape[0]}, got {arguments.describe(b)}")
    # With t = a − b less its least entry, p/q − 1 = e^{t − log Σ q e^t} − 1 has the digits of a small difference.
    move = a - b
    raised = move - jnp.min(move)
    q = jax.nn.softmax(b)
    change = jnp.expm1(raised - jnp.log1p(jnp.sum(q * jnp.expm1(raised))))
    near = jnp.max(raised) < 1
    # The exponential of a large difference could overflow; there softmax itself has the digits.
    far = jnp.sum(jnp.abs(jax.nn.softmax(a) - q)) / 2
    left = jnp.where(near, jnp.sum(q * jnp.abs(jnp.where(near, change, 0))) / 2, far)
    right = jnp.tanh(jnp.max(raised) / 4)
    return Inequality(left, right, right - left)


@arguments.guard(x=arguments.tokens)
def mixture(p: Float[Array, " token"], q: Float[Array, " token"], x: Float[Array, "token feature"]) -> Inequality:
    """‖Σ_j (p − q)_j x_j‖₂ ≤ TV(p, q) diam(X): two mixtures of the same tokens are no farther apart than that.

    Args:
        p: weights that sum to 1.
        q: weights that sum to 1.
        x: at least two tokens.

    Returns:
        Both sides; slack is right − left.

    Example:
        >>> import jax.numpy as jnp
        >>> step = mixture(jnp.array([0.75, 0.25]), jnp.array([0.25, 0.75]), jnp.array([[0.0], [2.0]]))
        >>> float(step.left), float(step.right)
        (1.0, 1.0)
    """
    if p.shape != q.shape or p.shape[0] != x.shape[0]:
        got = f"{arguments.describe(p)} and {arguments.describe(q)}"
        raise ValueError(f"`p` and `q` must have a weight for each of {x.shape[0]} tokens, got {got}")
    change = p - q
    centred = x - jnp.mean(x, axis=0, keepdims=True)
    left = jnp.linalg.norm(jnp.sum(change[:, None] * centred, axis=0))
    right = jnp.sum(jnp.abs(change)) / 2 * diameter(x)
    return Inequality(left, right, right - left)


@arguments.guard(x=arguments.tokens, scale=arguments.positive)
def tanh_layer(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
) -> Inequality:
    """Log diam(X^(l+1)) against the bound from diam(X^l), at every layer, in cancellation-free arithmetic.

    Args and errors as in `collapse.tanh_bound`.

    Returns:
        Two logarithms per layer (nats); slack is their difference.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=5)
        >>> x = jax.random.normal(jax.random.key(1), (8, 16))
        >>> bool((tanh_layer(network.init(jax.random.key(0), spec), x, spec).slack > 0).all())
        True
    """
    check_bounded(params, x, spec)
    sizes = diameters_by_layer(params, x, spec, scale)
    return compare(sizes.log_after, sizes.log_bound, x)


@arguments.guard(x=arguments.tokens, scale=arguments.positive)
def tanh_depth(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
) -> Inequality:
    """Log diam(X^l) against `tanh_bound`, before the first layer and after each one, in cancellation-free arithmetic.

    Args and errors as in `collapse.tanh_bound`.

    Returns:
        Two logarithms for each of depth + 1 places (nats), equal at the first; slack is their difference.

    Example:
        Two opposite tokens in one dimension attain the bound at every depth.

        >>> import jax.numpy as jnp
        >>> from rc_jax import attention, network
        >>> one = jnp.ones((3, 1, 1, 1))
        >>> params = network.LayerParams(attention.AttentionParams(one, one, one, one))
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=1), depth=3)
        >>> bool((abs(tanh_depth(params, jnp.array([[0.5], [-0.5]]), spec).slack) < 1e-4).all())
        True
    """
    check_bounded(params, x, spec)
    bound = tanh_bound(params, x, spec, scale=scale)
    after = diameters_by_layer(params, x, spec, scale).log_after
    return compare(jnp.concatenate([bound[:1], after.astype(x.dtype)]), bound, x)
