"""Sizes of weight gradients: against difference quotients in many digits at depth, and against JAX where it can see."""

import dataclasses

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import attention, collapse, network

NAMES = ("query", "key", "value", "output")


def stack(depth=3, skip=False, **changes):
    layer = attention.AttentionSpec(**({"d_model": 8, "heads": 2} | changes))
    return network.StackSpec(attention=layer, depth=depth, skip=skip)


def draw(seed, spec, dtype="float64", tokens=5, size=1.0):
    params = network.init(jax.random.key(seed), spec, dtype=dtype, bias_std=0.3)
    x, cotangent = jax.random.normal(jax.random.key(seed + 100), (2, tokens, spec.attention.d_model), dtype)
    return params, jnp.asarray(size, dtype) * x, cotangent


def loss(weights, x, cotangent, alpha):
    """Σ G∘X^L of single-head attention without skips, on mpmath matrices, from the textbook formula."""
    for query, key, value, output in weights:
        logits = (x * query) * (x * key).T * alpha
        p = mp.matrix(x.rows, x.rows)
        for i in range(x.rows):
            powers = [mp.exp(logits[i, j]) for j in range(x.rows)]
            total = mp.fsum(powers)
            for j in range(x.rows):
                p[i, j] = powers[j] / total
        x = p * (x * value) * output
    return mp.fsum(a * b for a, b in zip(x, cotangent, strict=True))


def test_against_differences_in_many_digits(dtype):
    spec = stack(depth=4, d_model=3, heads=1, d_head=2)
    params, x, cotangent = draw(3, spec, dtype, tokens=4, size=0.2)
    gradients = collapse.log_weight_gradients(params, x, spec, cotangent)
    with mp.workdps(500):
        weights = [
            [mp.matrix(np.asarray(getattr(params.attention, name), float)[layer, 0].tolist()) for name in NAMES]
            for layer in range(spec.depth)
        ]
        tokens, given = (mp.matrix(np.asarray(a, float).tolist()) for a in (x, cotangent))
        alpha, step = 1 / mp.sqrt(2), mp.mpf(10) ** -200
        base = loss(weights, tokens, given, alpha)
        for layer in range(spec.depth):
            for index, name in enumerate(NAMES):
                matrix, square = weights[layer][index], mp.mpf(0)
                for i in range(matrix.rows):
                    for j in range(matrix.cols):
                        matrix[i, j] += step
                        square += ((loss(weights, tokens, given, alpha) - base) / step) ** 2
                        matrix[i, j] -= step
                exact = float(mp.log(square) / 2)
                got = float(getattr(gradients, name)[layer])
                assert got == pytest.approx(exact, abs=1000 * float(jnp.finfo(dtype).eps)), (name, layer)
    assert float(gradients.query[-1]) < -60  # where backpropagation in float64 sees noise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skip", "changes"),
    [(True, {"bias": True, "causal": True}), (False, {"window": 1})],
)
def test_against_backpropagation_where_it_can_see(x64, skip, changes):
    spec = stack(skip=skip, **changes)
    params, x, cotangent = draw(0, spec)
    mask = jnp.asarray(np.random.default_rng(0).random((5, 5)) < 0.8) | jnp.eye(5, dtype=bool) if skip else None
    gradients = collapse.log_weight_gradients(params, x, spec, cotangent, scale=0.7, mask=mask)

    @jax.jit
    def plain(params):
        return jnp.sum(cotangent * network.apply(params, x, spec, scale=0.7, mask=mask))

    gradient = jax.grad(plain)(params).attention
    for name in NAMES:
        sizes = jnp.log(jnp.sum(jnp.square(getattr(gradient, name)), axis=(1, 2, 3))) / 2
        np.testing.assert_allclose(getattr(gradients, name), sizes, atol=1e-9)


@pytest.mark.slow
def test_orders_are_two_two_zero_zero(x64):
    """From the last layer but one to the last: change of log-gradient over change of log-residual."""
    spec = stack(depth=5)
    params, x, cotangent = draw(1, spec, size=0.3)
    gradients = collapse.log_weight_gradients(params, x, spec, cotangent)
    for name, order in zip(NAMES, (2, 2, 0, 0), strict=True):
        slope = np.diff(np.asarray(getattr(gradients, name)))[-1] / np.diff(np.asarray(gradients.log_residual))[-1]
        assert slope == pytest.approx(order, abs=0.05), name


@pytest.mark.slow
def test_recipe_heads_and_the_loss_scale(x64):
    spec = stack(depth=5)
    params, x, cotangent = draw(2, spec)
    gradients = collapse.log_weight_gradients(params, x, spec, cotangent)
    random = network.random_layers(jax.random.key(2), spec, bias_std=0.3, dtype="float64")
    for a, b in zip(gradients, collapse.log_weight_gradients(random, x, spec, cotangent), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    for a, b in zip(gradients[:4], collapse.log_weight_gradients(params, x, spec, 1e3 * cotangent)[:4], strict=True):
        np.testing.assert_allclose(a + np.log(1e3), b, atol=1e-9)
    states = network.hidden_states(params, x, spec)[:3]
    centred = np.asarray(states - states.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(gradients.log_residual[:3], np.log(np.linalg.norm(centred, axis=(1, 2))), atol=1e-9)


@pytest.mark.slow
def test_cotangents_whose_squares_leave_the_dtype(x64):
    """The gradients are linear in the cotangent, and one with rows that sum to zero is refused at any size."""
    spec = stack()
    params, x, cotangent = draw(2, spec)
    gradients = collapse.log_weight_gradients(params, x, spec, cotangent)
    for size in (1e-300, 1e-165, 1e160, 1e300):
        moved = collapse.log_weight_gradients(params, x, spec, size * cotangent)
        for a, b in zip(gradients[:4], moved[:4], strict=True):
            np.testing.assert_allclose(b - a, np.log(size), rtol=1e-12)
        with pytest.raises(ValueError, match="`cotangent` must have rows that do not sum to zero"):
            collapse.log_weight_gradients(params, x, spec, size * (cotangent - cotangent.mean(axis=0, keepdims=True)))
    with pytest.raises(ValueError, match="`cotangent` must have rows that do not sum to zero"):
        collapse.log_weight_gradients(params, x, spec, 0 * cotangent)


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    spec = stack()
    params, x, cotangent = draw(0, spec, "float32")
    with pytest.raises(ValueError, match="`cotangent` must have rows that do not sum to zero"):
        collapse.log_weight_gradients(params, x, spec, cotangent - cotangent.mean(axis=0, keepdims=True))
    with pytest.raises(ValueError, match="`cotangent` must have the shape and dtype"):
        collapse.log_weight_gradients(params, x, spec, cotangent[:3])
    with pytest.raises(TypeError, match="`cotangent` must be a floating-point array"):
        collapse.log_weight_gradients(params, x, spec, jnp.ones((5, 8), int))
    for change, reason in (
        ({"mlp": network.MLPSpec(width=8)}, "mlp=None"),
        ({"norm": "pre"}, "norm=None"),
        ({"attention": attention.AttentionSpec(d_model=8, heads=2, weights="power6")}, "weights='softmax'"),
        ({"attention": attention.AttentionSpec(d_model=8, heads=2, scores="cosine")}, "scores='dot'"),
    ):
        with pytest.raises(ValueError, match=f"`spec` must have {reason}"):
            collapse.log_weight_gradients(params, x, dataclasses.replace(spec, **change), cotangent)


@pytest.mark.parametrize("tokens", [(4.0, 8.0), (10.0, 20.0), (30.0, 90.0)])
def test_saturated_softmax(dtype, tokens):
    """P is diag(p, 1 − p), whose gradient is of order p = e^(x₁x₂ − x₁²), and the loss x₁' + 2x₂'."""
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=1), depth=1)
    one = jnp.ones((1, 1, 1, 1), dtype)
    params = network.LayerParams(attention.AttentionParams(one, one, one, one))
    x, cotangent = jnp.asarray(tokens, dtype)[:, None], jnp.asarray([[1.0], [2.0]], dtype)
    got = collapse.log_weight_gradients(params, x, spec, cotangent, scale=1.0).query[0]
    with mp.workdps(2000):
        a, b = map(mp.mpf, tokens)

        def loss(weight):
            rows = [mp.e ** (weight * q * (a - b)) for q in (a, b)]  # the weight of token 1 over that of token 2
            return sum(c * (r * a + b) / (1 + r) for c, r in zip((1, 2), rows, strict=True))

        step = mp.mpf(10) ** -900
        right = mp.log(abs(loss(1 + step) - loss(1 - step)) / (2 * step))
    assert abs(float(got) - float(right)) < 16 * float(jnp.finfo(dtype).eps) * abs(float(right))


def test_weights_below_the_smallest_number_are_not_lost_unseen(x64):
    """A gradient by way of a token with a weight of e^−180 is not −∞ unseen: right, or NaN."""
    spec = stack()
    params, x, cotangent = jax.vmap(lambda seed: draw(seed, spec, tokens=4))(jnp.array((48, 109, 307, 315)))
    given = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32), (jax.tree.map(lambda leaf: 3 * leaf, params), x, cotangent)
    )
    sizes = jax.jit(jax.vmap(lambda params, x, cotangent: collapse.log_weight_gradients(params, x, spec, cotangent)))
    right = sizes(*jax.tree.map(lambda leaf: leaf.astype(jnp.float64), given))
    for name, got, wanted in zip(NAMES, sizes(*given), right, strict=False):
        known = ~np.isnan(got)
        assert known[:, 0].all() and np.isfinite(wanted[:, :2]).all()
        np.testing.assert_allclose(got[known], wanted[known], rtol=1e-3, atol=0.05, err_msg=name)


@pytest.mark.parametrize(
    "changes", [{"heads": 2}, {"causal": True, "window": 2, "heads": 1}, {"window": 1, "skip": True}], ids=str
)
def test_saturated_networks_in_float32_are_right_or_unknown(x64, changes):
    """Of 96 networks with weights down to e^−1000, which nothing may turn into gradients of 0; against float64."""
    spec = stack(depth=4, **changes)

    def drawn(seed):
        params = network.init(jax.random.key(seed), spec, gain=4.0, dtype="float64")
        return params, *(jax.random.normal(jax.random.key(seed + more), (6, 8)) for more in (1, 2))

    given = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), jax.vmap(drawn)(jnp.arange(96)))
    sizes = jax.jit(jax.vmap(lambda params, x, cotangent: collapse.log_weight_gradients(params, x, spec, cotangent)))
    right = sizes(*jax.tree.map(lambda leaf: leaf.astype(jnp.float64), given))
    for name, got, wanted in zip(NAMES, sizes(*given), right, strict=False):
        known = ~np.isnan(got) & ~np.isnan(wanted)
        assert known[:, 0].mean() > 0.7 and known[:, 1].mean() > 0.2, name
        np.testing.assert_allclose(got[known], wanted[known], rtol=1e-3, atol=0.05, err_msg=name)
