"""Every inequality of the proofs on thousands of cases, against plain NumPy, and against adversaries."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax.collapse import audit
from rc_jax.collapse.audit import ascent
from rc_jax.collapse.bounds.cubic import log_weight_change
from tests.oracles import bounds as oracle
from tests.oracles.collapse import states as states_of

CASES = 10_000
EPS = float(np.finfo(np.float32).eps)


@functools.cache
def moved_softmaxes():
    """Logits, perturbations with oscillations up to the lemma's limit and often at it, and signed matrices R."""
    keys = jax.random.split(jax.random.key(7), 6)
    base = 2 * jax.random.normal(keys[0], (CASES, 5, 6))
    move = jax.random.normal(keys[1], (CASES, 5, 6)) ** 3
    low, high = move.min(axis=-1, keepdims=True), move.max(axis=-1, keepdims=True)
    bound = audit.LEMMA_LIMIT * jnp.minimum(1, 1.25 * jax.random.uniform(keys[2], (CASES, 5, 1)))
    rest = jax.random.normal(keys[3], (CASES, 6, 4))
    return base, bound * (move - low) / (high - low), rest


@functools.cache
def tokens_and_weights():
    keys = jax.random.split(jax.random.key(8), 3)
    size = jnp.exp(jax.random.uniform(keys[0], (CASES, 1, 1), minval=-4, maxval=2))
    return jax.random.normal(keys[1], (CASES, 4, 4)), size * jax.random.normal(keys[2], (CASES, 6, 4))


def test_the_constant_is_lamberts():
    with mp.workdps(40):
        exact = -mp.mpf(1) / 2 - mp.lambertw(-mp.exp(-mp.mpf(1) / 2) / 2, -1).real
        assert abs(mp.exp(exact) - 1 - 2 * exact) < mp.mpf(10) ** -38
        assert abs(audit.LEMMA_LIMIT - exact) < 2 * np.finfo(float).eps
    assert f"{audit.LEMMA_LIMIT:.14f}" == "1.25643120862617"


def test_the_constant_is_sharp(x64):
    """One token of vanishing weight whose logit rises by D: P/P̃ → e^D, which passes 1 + 2D at the limit."""
    for off, holds in ((-1e-6, True), (1e-6, False)):
        bound = audit.LEMMA_LIMIT + off
        step = audit.lemma_upper(jnp.array([[np.log(1e-12), 0.0]]), jnp.array([[bound, 0.0]]))
        assert bool(step.slack.min() >= 0) is holds
        np.testing.assert_allclose(step.slack.min(), np.log1p(2 * bound) - bound, atol=1e-11)
        assert bool((step.left <= step.right).all()) is holds


@pytest.mark.parametrize("inequality", [audit.lemma_lower, audit.lemma_upper])
def test_lemma_is_never_violated(inequality):
    base, move, _ = moved_softmaxes()
    step = jax.jit(jax.vmap(inequality))(base, move)
    assert step.slack.shape == (CASES, 5, 6)
    assert float(step.slack.min()) >= -8 * EPS
    p, shared = np_softmax(base + move), np_softmax(base)
    bound = np.ptp(np.asarray(move, float), axis=-1, keepdims=True)
    sides = ((1 - bound) * shared, p) if inequality is audit.lemma_lower else (p, (1 + 2 * bound) * shared)
    for mine, theirs in zip(step, sides, strict=False):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)


def test_published_step_is_violated_on_half_of_the_entries():
    base, move, rest = moved_softmaxes()
    step = jax.jit(jax.vmap(audit.published_step))(base, move, rest)
    assert 0.4 < float(jnp.mean(step.slack < 0)) < 0.6
    p, shared = np_softmax(base + move), np_softmax(base)
    bound, signed = np.ptp(np.asarray(move, float), axis=-1, keepdims=True), np.asarray(rest, float)
    np.testing.assert_allclose(step.left, p @ signed, atol=1e-5)
    np.testing.assert_allclose(step.right, (1 + 2 * bound) * (shared @ signed), atol=1e-5)
    violated = (p @ signed) > (1 + 2 * bound) * (shared @ signed)
    assert np.mean(violated == np.asarray(step.slack < 0)) > 0.9999
    # On attention itself, where E = RARᵀ is the tokens' own.
    weight, x = tokens_and_weights()
    parts = jax.vmap(audit.split)(weight, x)
    assert 0.4 < float(jnp.mean(jax.vmap(audit.published_step)(*parts).slack < 0)) < 0.6


def test_published_step_turns_over_with_the_sign_of_the_residual():
    base, move, rest = (part[:100] for part in moved_softmaxes())
    there, back = (jax.vmap(audit.published_step)(base, move, sign * rest).slack for sign in (1.0, -1.0))
    np.testing.assert_allclose(there, -back, atol=1e-6)


def test_repaired_step_is_never_violated():
    base, move, rest = moved_softmaxes()
    step = jax.jit(jax.vmap(audit.repaired_step))(base, move, rest)
    assert float((step.slack / step.right).min()) >= -8 * EPS
    p, shared = np_softmax(base + move), np_softmax(base)
    bound, signed = np.ptp(np.asarray(move, float), axis=-1, keepdims=True), np.asarray(rest, float)
    np.testing.assert_allclose(step.left, abs((p - shared) @ signed), atol=1e-5)
    np.testing.assert_allclose(step.right, 2 * bound * (shared @ abs(signed)), rtol=1e-4, atol=1e-6)


def test_norm_step_and_gamma_cap_are_never_violated():
    base, move, rest = moved_softmaxes()
    step = jax.jit(jax.vmap(audit.norm_step))(jax.nn.softmax(base[:, 0], axis=-1), move, rest)
    assert float((step.slack / step.right).min()) >= -8 * EPS
    weight, x = tokens_and_weights()
    step = jax.jit(jax.vmap(audit.gamma_cap))(weight, jax.vmap(audit.split)(weight, x).rest)
    assert float(step.slack.min()) >= -8 * EPS
    assert float(step.right.max()) <= 2 * (1 + 8 * EPS)  # √min(tokens, d_model)
    rest, w = np.asarray(x[0] - x[0].mean(axis=0, keepdims=True), float), np.asarray(weight[0], float)
    spread = np.ptp(rest @ w @ rest.T, axis=1)
    size = abs(rest).sum(0).max() * abs(rest).sum(1).max()
    gamma = np.sqrt(spread.sum() * spread.max()) / (2 * abs(w).sum(0).max() * size)
    np.testing.assert_allclose(step.left[0], gamma, rtol=1e-5)


@pytest.mark.slow
def test_split_gives_the_layers_own_weights(x64):
    """softmax(base + perturbation) is softmax(XAXᵀ), whatever the centre."""
    keys = jax.random.split(jax.random.key(1), 2)
    weight, x = jax.random.normal(keys[0], (3, 3)), jax.random.normal(keys[1], (5, 3)) + 1
    for center in ("mean", "argmin"):
        parts = audit.split(weight, x, center)
        np.testing.assert_allclose(
            np_softmax(parts.base + parts.perturbation), np_softmax(x @ weight @ x.T), rtol=1e-12
        )
        np.testing.assert_allclose(x - parts.rest, jnp.broadcast_to((x - parts.rest)[:1], x.shape), atol=1e-12)


def test_score_oscillation_and_mixture_are_never_violated():
    weight, x = tokens_and_weights()
    step = jax.jit(jax.vmap(audit.score_oscillation))(weight, x)
    assert float((step.slack / step.right).min()) >= -16 * EPS
    tokens, w = np.asarray(x[0], float), np.asarray(weight[0], float)
    gaps = (tokens[:, None] - tokens[None]).reshape(-1, 4)
    np.testing.assert_allclose(step.left[0], (gaps @ w @ gaps.T).max(), rtol=1e-5)
    longest = np.linalg.norm(gaps, axis=1).max()
    np.testing.assert_allclose(step.right[0], np.linalg.norm(w, 2) * longest**2, rtol=1e-5)

    p, q = (jax.nn.softmax(3 * jax.random.normal(jax.random.key(seed), (CASES, 6)), axis=-1) for seed in (1, 2))
    step = jax.jit(jax.vmap(audit.mixture))(p, q, x)
    assert float((step.slack / step.right).min()) >= -16 * EPS
    change = np.asarray(p[0] - q[0], float)
    np.testing.assert_allclose(step.left[0], np.linalg.norm(change @ tokens), rtol=1e-4)
    np.testing.assert_allclose(step.right[0], abs(change).sum() / 2 * longest, rtol=1e-4)


@pytest.mark.parametrize("size", [1e-4, 0.3, 3.0, 30.0])
def test_total_variation_is_never_violated(size):
    a, b = (size * jax.random.normal(jax.random.key(seed), (CASES, 6)) for seed in (3, 4))
    step = jax.jit(jax.vmap(audit.total_variation))(a, b)
    assert float((step.slack / step.right).min()) >= -8 * EPS
    np.testing.assert_allclose(step.left, abs(np_softmax(a) - np_softmax(b)).sum(axis=-1) / 2, rtol=2e-4, atol=2e-7)


@pytest.mark.parametrize("delta", [1e-3, 0.5, 2.0, 8.0])
def test_total_variation_by_search_over_all_likelihood_ratios(x64, delta):
    """Without the proof: p = q·g with g of any two levels of ratio e^δ, on a grid of q's mass; TV in closed form."""
    mass = np.linspace(1e-4, 1 - 1e-4, 20_001)
    variation = mass * np.exp(delta) / (1 + mass * np.expm1(delta)) - mass
    assert variation.max() <= np.tanh(delta / 4) * (1 + 1e-12)
    np.testing.assert_allclose(variation.max(), np.tanh(delta / 4), rtol=1e-4)
    step = audit.total_variation(jnp.array([delta / 4, -delta / 4]), jnp.array([-delta / 4, delta / 4]))
    np.testing.assert_allclose(step.left, step.right, rtol=1e-13)


def test_weights_move_no_further_than_the_bound_says():
    delta = np.array([1e-20, 1e-6, 0.5, 1.2, audit.LEMMA_LIMIT, 1.3, 5.0, 80.0])
    expected = np.log(np.maximum(2 * delta, np.expm1(delta)))
    np.testing.assert_allclose(
        log_weight_change(jnp.log(jnp.asarray(delta, jnp.float32))), expected, rtol=1e-5, atol=1e-6
    )
    assert jnp.isneginf(log_weight_change(jnp.asarray(-jnp.inf)))
    assert jnp.isfinite(jax.grad(log_weight_change)(jnp.asarray(0.1)))


@pytest.mark.parametrize(
    "name, least",
    [
        ("lemma", 0.97),
        ("repair", 0.85),
        ("variation", 0.999),
        pytest.param("tanh_layer", 0.99, marks=pytest.mark.slow),
        pytest.param("layer", 0.01, marks=pytest.mark.slow),
    ],
)
def test_adversaries_approach_a_bound_and_never_pass_it(x64, name, least):
    ratios = np.exp(ascent.ascend(name, jax.random.key(0), 8, 400))
    assert np.isfinite(ratios).all()
    assert ratios.max() <= 1 + 16 * np.finfo(float).eps
    assert ratios.max() > least


def climbed_in_float32(count, steps):
    """Ends of a gradient ascent of measured/tanh bound in plain float32, from nearly equal tokens, and their ratios."""
    log_ratio, shapes = ascent.RATIOS["tanh_layer"]
    keys = jax.random.split(jax.random.key(5), len(shapes))
    starts = {
        name: jax.random.normal(key, (count, *shape), "float32")
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    starts["x"] = 3 + 3e-3 * starts["x"]

    def step(point, _):
        slope = jax.tree.map(lambda s: jnp.where(jnp.isfinite(s), s, 0), jax.grad(log_ratio)(point))
        size = jnp.sqrt(sum(jnp.sum(jnp.square(s)) for s in slope.values())) + np.float32(1e-30)
        return {name: point[name] + np.float32(1e-4) * slope[name] / size for name in point}, None

    ends = jax.jit(jax.vmap(lambda point: jax.lax.scan(step, point, None, length=steps)[0]))(starts)
    return ends, np.asarray(jax.jit(jax.vmap(log_ratio))(ends))


def test_what_plain_arithmetic_shows_beyond_the_tanh_bound_is_its_rounding():
    """The same float32 numbers, in 60 digits: no end of the ascent is beyond the bound."""
    ends, plain = climbed_in_float32(count=32, steps=30)
    beyond = np.flatnonzero(plain > 0)
    assert len(beyond) >= 5 and plain.max() > 0.1
    for index in beyond:
        point = {name: value[index] for name, value in ends.items()}
        params = jax.tree.map(np.asarray, ascent._params(point))
        with mp.workdps(60):
            before, after = states_of(params, point["x"], ascent._SPEC)
            bound = oracle.tanh_growth(oracle.diameter(before), oracle.heads(params, 0, [1 / mp.sqrt(3)]))
            assert oracle.diameter(after) <= bound


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    base, move, rest = (part[0] for part in moved_softmaxes())
    for step in (audit.lemma_lower, audit.lemma_upper):
        with pytest.raises(ValueError, match=r"`base` must have shape \(1 or 5, 6\) like `perturbation`"):
            step(base[:, :5], move)
        with pytest.raises(TypeError, match="`perturbation` must be a floating-point array"):
            step(base, move.astype(int))
    for step in (audit.published_step, audit.repaired_step):
        with pytest.raises(ValueError, match="`rest` must have a row for each of 6 tokens"):
            step(base, move, rest[:5])
        with pytest.raises(ValueError, match="`base` must have shape"):
            step(base[:3], move, rest)
    weight, x = (part[0] for part in tokens_and_weights())
    for step in (audit.split, audit.gamma_cap, audit.score_oscillation):
        with pytest.raises(ValueError, match=r"`weight` must have shape \(4, 4\)"):
            step(weight[:3], x)
        with pytest.raises(ValueError, match="token >= 2"):
            step(weight, x[:1])
    with pytest.raises(ValueError, match="`center` must be one of"):
        audit.split(weight, x, "middle")
    with pytest.raises(ValueError, match="`shared` and `rest` must have an entry and a row for each of 6 tokens"):
        audit.norm_step(base[0, :5], move, rest)
    with pytest.raises(ValueError, match="`b` must have as many logits as `a`, 6"):
        audit.total_variation(base[0], base[0, :5])
    with pytest.raises(ValueError, match="`p` and `q` must have a weight for each of 6 tokens"):
        audit.mixture(base[0, :5], base[0, :5], rest)


def np_softmax(logits):
    logits = np.asarray(logits, float)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
