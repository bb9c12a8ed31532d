"""The normals against Threefry's published answers, JAX's own generator and the law itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from rc_jax import special
from rc_jax._numerics.random import box_muller, side_by_side, threefry, through_complex_numbers


def box_muller_exactly(left, right):
    """The two numbers of words in double precision, of u as float32 rounds it, and their distance from the origin."""
    left, right = (np.asarray(word).astype(np.int64) for word in (left, right))
    uniform = (left // 4 + 0.5).astype(np.float32).astype(float) / 2**30
    part = right % 2**30
    angle = np.pi / 2 * (right // 2**30 + np.where(part < 2**29, part, part - 2**30) / 2**30)
    distance = np.sqrt(-2 * np.log(uniform))
    return distance * np.stack([np.cos(angle), np.sin(angle)]), distance


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # Random123's file kat_vectors, threefry2x32 with 20 rounds
        ("00000000 00000000", "00000000 00000000", "6b200159 99ba4efe"),
        ("ffffffff ffffffff", "ffffffff ffffffff", "1cb996fc bb002be7"),
        ("243f6a88 85a308d3", "13198a2e 03707344", "c4923a9c 483df7a0"),
    ],
)
def test_known_answers(counter, key, words):
    counter, key, words = ([np.uint32(int(word, 16)) for word in text.split()] for text in (counter, key, words))
    left, right = threefry((jnp.asarray(key[0]), jnp.asarray(key[1])), tuple(jnp.asarray([word]) for word in counter))
    assert [int(left[0]), int(right[0])] == [int(word) for word in words]


def assert_points(got, left, right):
    """Numbers, a pair to a column, are those of these words to five roundings of a pair's distance from the origin."""
    wanted, distance = box_muller_exactly(left, right)
    assert np.all(np.abs(got - wanted) <= 5 * np.finfo(np.float32).eps / 2 * distance)


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_jax_has_the_same_words_and_they_become_these_numbers(count):
    key = jax.random.key(3)
    half = -(-count // 2)
    counters = jnp.concatenate([jnp.zeros(half, jnp.uint32), jnp.arange(half, dtype=jnp.uint32)])
    words = np.asarray(threefry_2x32(jax.random.key_data(key), counters))
    drawn = np.asarray(special.normals(key, (2 * half,))).astype(float)
    assert_points(drawn.reshape(half, 2).T, words[:half], words[half:])
    np.testing.assert_array_equal(special.normals(key, (count,)), drawn[:count])


EDGES = np.array([0, 1, 2, 3, 4, 2**29 - 1, 2**29, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32)


def test_every_quadrant_edge_and_length():
    """The two ends of the uniform numbers and all corners of the angle, among many others."""
    random = np.random.default_rng(0).integers(2**32, size=(2, 2**20), dtype=np.uint32)
    corners = np.stack(np.meshgrid(EDGES, EDGES)).reshape(2, -1)
    left, right = np.concatenate([corners, random], axis=1)
    got = np.stack(jax.jit(box_muller)(left, right)).astype(float)
    assert_points(got, left, right)
    assert 6.55 < np.abs(got).max() < 6.56


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_cpu_draws_the_numbers_of_other_devices(count):
    words = jax.random.key_data(jax.random.key(5))
    fast, plain = (
        jax.jit(form, static_argnums=1)(words, count)[: 2 * count] for form in (through_complex_numbers, side_by_side)
    )
    eps = float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(fast, plain, rtol=2 * eps, atol=2 * eps)


@pytest.mark.slow
def test_law_and_independence():
    count = 2**21
    drawn = np.asarray(special.normals(jax.random.key(0), (2, count))).astype(float)
    assert stats.kstest(drawn.ravel(), "norm").pvalue > 1e-3
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        z = ((drawn**power).mean() - moment) / np.sqrt(variance / drawn.size)
        assert abs(z) < 4.5, (power, z)
    # Halves, neighbours (the two of a block among them), and the same places of keys folded in.
    other = np.asarray(special.normals(jax.random.fold_in(jax.random.key(0), 1), (count,))).astype(float)
    for a, b in ((drawn[0], drawn[1]), (drawn[0, 1:], drawn[0, :-1]), (drawn[0], other)):
        for f in (lambda x: x, np.square, np.abs):
            assert abs(np.corrcoef(f(a), f(b))[0, 1]) * np.sqrt(a.size) < 4.5
    tails = [(np.abs(drawn) > limit).sum() for limit in (3, 4, 5)]
    expected = drawn.size * 2 * stats.norm.sf([3, 4, 5])
    assert np.all(np.abs(tails - expected) < 4.5 * np.sqrt(expected))


@pytest.mark.slow
def test_keys_batches_and_types(x64):
    keys = jax.random.split(jax.random.key(0), 3)
    stacked = jax.vmap(lambda key: special.normals(key, (5, 2), "float32"))(keys)
    for key, row in zip(keys, stacked, strict=True):
        np.testing.assert_array_equal(row, special.normals(key, (5, 2), "float32"))
    for dtype in ("float64", "bfloat16"):
        np.testing.assert_array_equal(
            special.normals(keys[0], (4,), dtype), jax.random.normal(keys[0], (4,), jnp.dtype(dtype))
        )
    other = jax.random.key(0, impl="rbg")
    np.testing.assert_array_equal(special.normals(other, (4,), "float32"), jax.random.normal(other, (4,), jnp.float32))
    assert special.normals(keys[0], (0,), "float32").shape == (0,) and special.normals(keys[0], ()).shape == ()


def test_a_batch_of_keys_under_other_transformations():
    """`normals` has a rule of its own for `jax.vmap`."""
    keys = jax.random.split(jax.random.key(0), 6).reshape(2, 3)

    def of(factor, key):
        return jnp.sum(jnp.sin(factor * special.normals(key, (7,))))

    def of_all(factor, across, function):
        return jax.vmap(jax.vmap(function, in_axes=(None, 0)), in_axes=(None, 1 if across else 0))(factor, keys)

    alone = np.stack([[special.normals(key, (7,)) for key in row] for row in keys])
    values, slopes = np.sum(np.sin(alone), -1), np.sum(alone * np.cos(alone), -1)
    for across in (False, True):
        expected = [each.T if across else each for each in (values, slopes)]
        for wrap in (lambda function: function, jax.checkpoint, jax.jit):
            value, slope = of_all(1.0, across, jax.value_and_grad(wrap(of)))
            np.testing.assert_allclose([value, slope], expected, rtol=1e-5, atol=1e-5)
            total = jax.grad(lambda *given: jnp.sum(of_all(*given)))(1.0, across, wrap(of))
            np.testing.assert_allclose(total, slopes.sum(), rtol=1e-5)
    np.testing.assert_array_equal(jax.lax.map(jax.vmap(lambda key: special.normals(key, (7,))), keys), alone)


@pytest.mark.parametrize("more", [0, 1])
def test_counters_of_one_word_do_not_come_round(more):
    def draw(key):
        return special.normals(key, (2**33 + more,), "float32")

    assert ("random_bits" in str(jax.make_jaxpr(draw)(jax.random.key(0)))) == bool(more)


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    with pytest.raises(TypeError, match="`key` must be one typed key"):
        special.normals(0, (3,))
    for shape in (3, (-1,), (2.0,)):
        with pytest.raises(TypeError, match="`shape` must be a tuple of integers"):
            special.normals(jax.random.key(0), shape)
    with pytest.raises(TypeError, match="`dtype` must be"):
        special.normals(jax.random.key(0), (3,), int)
