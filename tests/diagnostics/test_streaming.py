"""Measures in passes over blocks against the dense softmax in NumPy, and against mpmath where scores are extreme."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from rc_jax import diagnostics
from rc_jax.diagnostics import score_metrics
from rc_jax.diagnostics.streaming.passes import stream
from tests.diagnostics.dense import softmax

HEADS, GROUPS, WIDTH = 4, 2, 8
SCALE = WIDTH**-0.5


def draw(n, m, dtype=np.float32, spread=1.0, seed=0):
    """Queries, and keys with a common part, as trained ones have; the drawn numbers are those of the dtype."""
    rng = np.random.default_rng(seed)
    q = spread * rng.standard_normal((HEADS, n, WIDTH))
    k = rng.standard_normal((GROUPS, m, WIDTH)) + 2
    return q.astype(dtype), k.astype(dtype)


def visible(kind, n, m):
    """A mask, of which the array has rows that see nothing, or one key, or no key of the first blocks."""
    if kind == "none":
        return np.ones((n, m), bool)
    if kind == "causal":
        return np.tri(n, dtype=bool)
    seen = np.random.default_rng(1).random((n, m)) < 0.3
    seen[3], seen[4], seen[5, : m - 2], seen[5, -2:] = False, np.arange(m) == 7, False, True
    return seen


def dense(q, k, scale, seen):
    """Σp², H, max p and the weight on key 0 of every row, by the softmax of the whole array in float64."""
    k = np.repeat(k.astype(float), len(q) // len(k), axis=0)
    s = np.einsum("hid,hjd->hij", q.astype(float) * np.reshape(scale, (-1, 1, 1)), k)
    largest = np.max(s, axis=-1, keepdims=True, where=seen, initial=-1e300)
    e = np.where(seen, np.exp(np.where(seen, s - largest, -np.inf)), 0)
    with np.errstate(invalid="ignore"):
        p = e / e.sum(-1, keepdims=True)
    logarithm = np.log(np.where(p > 0, p, 1))
    return np.square(p).sum(-1), -(p * logarithm).sum(-1), p.max(-1), p[..., 0], np.abs(s).max()


def assert_close(streamed, q, k, scale, seen, *, roundings=8.0):
    """As close as the rounding of scores lets it be, on rows that see something."""
    *expected, size = dense(q, k, scale, seen)
    some = seen.any(1)
    limit = roundings * np.finfo(q.dtype).eps * (1 + size)
    first = np.where(seen[:, 0], streamed.first, 0)  # a hidden first key has no weight
    measures = (streamed.rows.squares, streamed.rows.entropy, streamed.rows.largest, first)
    for mine, theirs in zip(measures, expected, strict=True):
        assert np.abs(np.asarray(mine, float) - theirs)[:, some].max() < limit


@pytest.mark.parametrize("kind, n, m, block", [("none", 37, 50, 16), ("causal", 37, 37, 16), ("array", 37, 29, 8)])
def test_blocks_agree_with_the_dense_form(kind, n, m, block):
    q, k = draw(n, m)
    seen, scale = visible(kind, n, m), np.array([0.2, 0.4, 0.8, 1.6], np.float32)
    mask = jnp.asarray(seen)[None] if kind == "array" else None
    streamed = stream(jnp.asarray(q), jnp.asarray(k), jnp.asarray(scale), mask, causal=kind == "causal", block=block)
    assert streamed.rows.entropy.dtype == np.float32
    assert_close(streamed, q, k, scale.astype(float), seen)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["none", "causal", "array"])
@pytest.mark.parametrize("block", [8, 16, 64, 1024])
@pytest.mark.parametrize("spread", [0.0, 1.0, 1000.0])
def test_every_kind_in_both_precisions(dtype, kind, block, spread):
    with jax.enable_x64(dtype == np.float64):
        n = 130
        q, k = draw(n, n, dtype, spread)
        scale, seen = np.full(HEADS, SCALE, dtype), visible(kind, n, n)
        mask = jnp.asarray(seen)[None] if kind == "array" else None
        streamed = stream(
            jnp.asarray(q), jnp.asarray(k), jnp.asarray(scale), mask, causal=kind == "causal", block=block
        )
        assert_close(streamed, q, k, scale.astype(float), seen, roundings=16)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_scores_of_ten_thousand(dtype):
    """Scores are whole numbers to ±10⁴, rising and falling between blocks; 40 digits as oracle."""
    rng = np.random.default_rng(0)
    n, m = 12, 40
    k = np.stack([rng.integers(-100, 101, m), rng.integers(-2, 3, m)], axis=-1)
    q = np.stack([rng.integers(-100, 101, n), rng.integers(-2, 3, n)], axis=-1)
    k[5], k[37], q[0], q[1] = (100, 0), (-100, 1), (100, 1), (-100, 1)
    scores = q @ k.T
    assert scores.max() >= 9_900 and scores.min() <= -9_900
    expected = []
    with mpmath.workdps(40):
        for row in scores:
            e = [mpmath.exp(int(s) - int(row.max())) for s in row]
            p = [each / mpmath.fsum(e) for each in e]
            expected.append((mpmath.fsum(w * w for w in p), -mpmath.fsum(w * mpmath.log(w) for w in p), max(p)))
    with jax.enable_x64(dtype == np.float64):
        one = jnp.ones(1, dtype)
        streamed = stream(jnp.asarray(q[None], dtype), jnp.asarray(k[None], dtype), one, None, causal=False, block=16)
    measures = np.stack([streamed.rows.squares[0], streamed.rows.entropy[0], streamed.rows.largest[0]], axis=-1)
    assert np.isfinite(measures).all()
    # The scores are right to a few eps·10⁴, and so are their exponentials.
    assert np.abs(measures - np.array(expected, float)).max() < 4 * np.finfo(dtype).eps * np.abs(scores).max()


def test_nothing_as_large_as_the_weights_is_held():
    """Of 4096 tokens, no array of the program is larger than the queries or a few blocks."""
    n, block = 4096, 128
    shaped = jax.ShapeDtypeStruct((1, n, WIDTH), np.float32)
    scale = jax.ShapeDtypeStruct((1,), np.float32)
    for causal in (False, True):
        run = functools.partial(stream, mask=None, causal=causal, block=block)
        program = jax.make_jaxpr(lambda q, k, s, run=run: run(q, k, s))(shaped, shaped, scale)
        assert largest_array(program.jaxpr) <= max(n * (WIDTH + 1), block**2)


def largest_array(jaxpr):
    """Elements of the largest array anywhere in a program."""
    sizes = [1]
    for equation in jaxpr.eqns:
        sizes += [each.aval.size for each in equation.outvars if hasattr(each.aval, "size")]
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    sizes.append(largest_array(inner))
    return max(sizes)


@pytest.mark.parametrize("kind", [pytest.param("none", marks=pytest.mark.slow), "causal"])
def test_scores_say_what_attention_says(kind):
    """Of two layers with two samples each: the same numbers as from the weights, but for those that need them."""
    rng = np.random.default_rng(2)
    q, k = rng.standard_normal((2, 2, 2, 3, 24, 5)).astype(np.float32)
    logits = np.einsum("lshid,lshjd->lshij", q, k) * 0.7 + (0 if kind == "none" else np.log(np.tri(24) + 1e-300))
    weights = softmax(logits).astype(np.float32)
    diagnosis = diagnostics.scores(list(q), list(k), scale=0.7, mask=kind, block=16)
    dense = diagnostics.attention(weights, axes=("layer", "sample", "head", "query", "key"))
    assert (diagnosis.tokens, diagnosis.samples, diagnosis.layers, diagnosis.heads) == (24, 2, 2, 3)
    assert diagnosis.causal == dense.causal == (kind == "causal")
    measures = dict(diagnosis.measures)
    seen = logits if kind == "none" else np.where(np.tri(24, dtype=bool), logits, -np.inf)
    np.testing.assert_allclose(measures.pop("largest_logit"), seen.max((1, 3, 4)), rtol=2e-6)
    assert set(measures) < set(dense.measures)
    for name, value in measures.items():
        np.testing.assert_allclose(value, dense[name], rtol=2e-4 if "scale" in name else 2e-6, err_msg=name)
    assert all(name in diagnosis.notes[-1] for name in set(dense.measures) - set(diagnosis.measures))


def test_queries_and_keys_may_differ_in_number():
    q, k = draw(9, 50)
    diagnosis = diagnostics.scores(q, k, scale=np.full(HEADS, SCALE))
    squares = dense(q, k, SCALE, np.ones((9, 50), bool))[0]
    np.testing.assert_allclose(diagnosis["participation"][0], (1 / squares).mean(-1), rtol=1e-5)
    assert diagnosis.tokens == 50 and diagnosis.notes[0] == "The 9 queries look at 50 keys."


def test_the_threshold_is_told_and_used():
    q, k = draw(9, 9)
    low, high = (diagnostics.scores(q, k, threshold=threshold) for threshold in (1e-9, 0.999))
    assert (low.threshold, high.threshold) == (1e-9, 0.999)
    assert low["sink_rate"].all() and not high["sink_rate"].any()


def test_one_head_and_half_precision():
    """Numbers of bfloat16 are computed in float32: as those that bfloat16 holds."""
    q, k = (jnp.asarray(x[0]).astype(jnp.bfloat16) for x in draw(12, 12))
    half, single = (diagnostics.scores(*(x.astype(kind) for x in (q, k))) for kind in (jnp.bfloat16, jnp.float32))
    assert half["entropy"].shape == (1, 1) and half.heads == 1
    assert all(half[name] == single[name] for name in single.measures)


GOOD = {"q": np.ones((2, 4, 3), np.float32), "k": np.ones((2, 4, 3), np.float32)}
RISING = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
NAN = np.where(np.arange(24).reshape(2, 4, 3) == 5, np.nan, GOOD["q"])


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"q": NAN}, ValueError, "`q` must be finite, got NaN or infinity in layer 0"),
        (
            {"k": 1e30 * RISING, "q": 1e30 * RISING},
            ValueError,
            "must fit float32, got scores",
        ),
        ({"q": np.ones((2, 4, 3), int)}, TypeError, "`q` must be an array of JAX, NumPy or PyTorch"),
        ({"q": np.ones(4, np.float32)}, ValueError, "`q` must have axes"),
        ({"k": np.ones((2, 4, 5), np.float32)}, ValueError, "`k` must have the shape of `q`"),
        ({"k": np.ones((3, 4, 3), np.float32)}, ValueError, "a divisor of 2, got"),
        ({"k": np.ones((2, 4, 3), np.float16)}, TypeError, "`k` must have the dtype of `q`, float32, got float16"),
        ({"k": [GOOD["k"]] * 2}, ValueError, "`q` and `k` must have as many layers, got 1 and 2"),
        ({"scale": -1.0}, ValueError, "`scale` must be > 0, got -1"),
        ({"scale": np.ones(3)}, ValueError, "`scale` must be one number or one for each of 2 heads"),
        ({"scale": "0.5"}, TypeError, "`scale` must be a real number"),
        ({"mask": "lower"}, ValueError, "`mask` must be one of 'none', 'causal', got 'lower'"),
        ({"mask": "causal", "k": np.ones((2, 5, 3), np.float32)}, ValueError, "4 queries look at 5 keys, got 'causal'"),
        ({"mask": np.ones((4, 4))}, TypeError, "`mask` must be an array of booleans"),
        ({"mask": np.ones((5, 4), bool)}, ValueError, "`mask` must have a shape that broadcasts to"),
        ({"mask": np.eye(4, dtype=bool)}, ValueError, "`mask` must let at least one query see two keys"),
        ({"block": 0}, ValueError, "`block` must be an integer >= 1"),
        ({"threshold": 0.0}, ValueError, "`threshold` must be > 0"),
    ],
)
def test_bad_input(change, error, message):
    with pytest.raises(error, match=message.replace("(", r"\(")):
        diagnostics.scores(**(GOOD | change))


def test_traced_values_are_sent_to_score_metrics():
    with pytest.raises(TypeError, match="`q` must not be traced"):
        jax.jit(diagnostics.scores)(**GOOD)
    with pytest.raises(TypeError, match="`scale` must not be traced: inside jit use"):
        jax.jit(lambda scale: diagnostics.scores(**GOOD, scale=scale))(0.5)


@pytest.mark.parametrize("n", [5, 6, 300])
def test_no_weight_exceeds_one(n):
    """A common key of 3e5, of which only key 0 differs: it has all the weight."""
    q, k = np.ones((1, n, 2), np.float32), np.zeros((1, n, 2), np.float32)
    k[0, :, 0], k[0, 0, 1] = -3e5, 50
    assert diagnostics.scores(q, k, scale=1.0, mask="causal")["sink_weight"] <= 1


def test_axes_that_fit_two_readings_are_refused_or_told():
    """(batch, tokens, heads, width) is the order of JAX and flax; (batch, heads, tokens, width) may count layers."""
    q, k = jax.random.normal(jax.random.key(0), (2, 2, 32, 4, 8))
    with pytest.raises(
        ValueError,
        match=r"axes \(…, heads, tokens, width\).*may be 32 heads of 4 queries and 4 keys, or 32 tokens of 4 heads",
    ):
        diagnostics.scores(q, k)
    moved = diagnostics.scores(q.swapaxes(-3, -2), k.swapaxes(-3, -2))
    assert (moved.layers, moved.heads, moved.tokens) == (2, 4, 32)
    assert "If it counts 2 samples of one layer" in moved.notes[0]


@pytest.mark.slow
def test_a_million_keys():
    """Some rows over 2²⁰ keys, each against its softmax in float64."""
    rng = np.random.default_rng(5)
    q, k = rng.standard_normal((1, 8, 16)).astype(np.float32), rng.standard_normal((1, 2**20, 16)).astype(np.float32)
    diagnosis = diagnostics.scores(2 * q, k)
    squares, entropy, largest, first, _ = dense(2 * q, k, 0.25, np.ones((8, 2**20), bool))
    expected = {"entropy": entropy, "participation": 1 / squares, "largest_weight": largest, "sink_weight": first}
    for name, value in expected.items():
        np.testing.assert_allclose(diagnosis[name][0, 0], value.mean(), rtol=1e-5, err_msg=name)
    logits = 0.5 * q[0].astype(float) @ k[0].T.astype(float)
    np.testing.assert_allclose(diagnosis["largest_logit"][0, 0], logits.max(), rtol=1e-6)


SAMPLES, TOKENS = 2, 24
IDS = np.array([[1] * 10 + [2] * 14, [1] * 17 + [-1] * 7])
DISTANCE = np.arange(TOKENS)[:, None] - np.arange(TOKENS)
LOWER = DISTANCE >= 0
PER_SAMPLE = (IDS > 0)[:, None, None] & LOWER
SLOPES = np.array([0.5, 0.25, 0.1])[:, None, None]
OTHER = np.where(PER_SAMPLE, 0, np.finfo(np.float32).min).astype(np.float32)
SAME = ((IDS[:, :, None] == IDS[:, None]) & (IDS > 0)[:, None])[:, None]
TERMS = {  # what `scores` is given, what may be seen, and what becomes of the products
    "mask of each sample": (dict(mask=PER_SAMPLE), PER_SAMPLE, lambda s: s),
    "added mask": (dict(mask=OTHER), PER_SAMPLE, lambda s: s),
    "mask of each head": (
        dict(mask=(PER_SAMPLE & (np.array([3, 9, 99])[:, None, None] > DISTANCE))),
        None,
        lambda s: s,
    ),
    "texts": (dict(segment_ids=IDS, mask="causal"), SAME & LOWER, lambda s: s),
    "alibi": (dict(bias=-SLOPES * DISTANCE, mask=LOWER), LOWER, lambda s: s - SLOPES * DISTANCE),
    "added mask with alibi": (
        dict(mask=np.where(LOWER, -SLOPES * DISTANCE, -1e9)),
        LOWER,
        lambda s: s - SLOPES * DISTANCE,
    ),
    "cap": (dict(soft_cap=1.5, mask="causal"), LOWER, lambda s: 1.5 * np.tanh(s / 1.5)),
    "cap and bias": (
        dict(soft_cap=1.5, bias=-0.1 * DISTANCE),
        LOWER | True,
        lambda s: 1.5 * np.tanh(s / 1.5) - 0.1 * DISTANCE,
    ),
    "sink": (dict(sink=np.array([0.5, 0, 3.0]), mask="causal"), LOWER, lambda s: s),
}


@pytest.mark.parametrize("block", [None, 8])
@pytest.mark.parametrize("name", TERMS)
def test_queries_and_keys_as_the_kernel_sees_them(name, block):
    """The same as of the weights, with the same statements; and so are the numbers for a log."""
    given, seen, logits_of = TERMS[name]
    seen = np.broadcast_to(given["mask"] if seen is None else seen, (SAMPLES, 3, TOKENS, TOKENS))
    q, k = np.random.default_rng(6).standard_normal((2, SAMPLES, 3, TOKENS, 5)).astype(np.float32)
    logits = logits_of(0.7 * np.einsum("bhid,bhjd->bhij", q, k))
    exponents = np.where(seen, np.exp(logits - logits.max()), 0)
    sink = np.exp(given["sink"][:, None] - logits.max()) if "sink" in given else 0
    weights = (exponents / np.maximum(exponents.sum(-1) + sink, 1e-30)[..., None]).astype(np.float32)
    plain = {"mask": seen} if "segment_ids" not in given else {"segment_ids": IDS, "mask": seen}
    expected = diagnostics.attention([weights], normalised="sink" not in given, **plain)
    diagnosis = diagnostics.scores([q], [k], scale=0.7, block=block, **given)
    measures = dict(diagnosis.measures)
    real = np.any(seen, axis=(1, 2))[:, None, :, None]  # rows of padding count for nothing
    largest = np.where(seen & real, logits, -np.inf).max((0, 2, 3))
    np.testing.assert_allclose(measures.pop("largest_logit")[0], largest, rtol=1e-5)
    assert set(measures) < set(expected.measures) and diagnosis.samples == expected.samples
    for measure, value in measures.items():
        np.testing.assert_allclose(value, expected[measure], rtol=3e-4, atol=2e-6, err_msg=measure)
    logged = score_metrics(q, k, scale=0.7, **given)
    for measure in ("relative_entropy", "sink_weight", "sink_rate", "largest_weight", "sparsity"):
        np.testing.assert_allclose(logged[measure], expected[measure].mean(), rtol=2e-5, err_msg=measure)
    np.testing.assert_allclose(logged["largest_logit"], largest.max(), rtol=1e-5)


@pytest.mark.parametrize("low", [-1e4, float(np.finfo(np.float32).min), -np.inf])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_a_mask_added_into_a_bias_hides_its_keys(low, array):
    """As T5 and ALiBi give it, against rows in plain NumPy; the same numbers as a mask, and traced."""
    q, k = np.random.default_rng(0).standard_normal((2, 2, 3, 9, 4)).astype(np.float32)
    lower, slope = np.tri(9, dtype=bool), -0.5 * np.abs(np.arange(9)[:, None] - np.arange(9)).astype(np.float32)
    bias = array(np.where(lower, slope, np.float32(low)))
    p = softmax(np.where(lower, np.einsum("shid,shjd->shij", q, k) / 2 + slope, -np.inf))
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)[..., 1:].mean((0, 2))  # row 0 sees one key
    both = [diagnostics.scores([q], [k], **{name: bias}) for name in ("bias", "mask")]
    for found in both:
        np.testing.assert_allclose(found["entropy"][0], entropy, rtol=1e-4)
    np.testing.assert_allclose(both[0]["largest_logit"], both[1]["largest_logit"])
    share = (-(p * np.log(np.where(p > 0, p, 1))).sum(-1)[..., 1:] / np.log(np.arange(2, 10))).mean()
    traced = jax.jit(lambda q, k, bias: score_metrics(q, k, bias=bias))(q, k, bias)
    for found in (traced, score_metrics(q, k, bias=bias), score_metrics(q, k, mask=bias)):
        np.testing.assert_allclose(found["relative_entropy"], share, rtol=1e-4)


def test_a_traced_mask_that_hides_nothing_is_refused_or_no_number():
    q, k = np.random.default_rng(0).standard_normal((2, 2, 3, 9, 4)).astype(np.float32)
    watched = jax.jit(lambda q, k, mask: score_metrics(q, k, mask=mask)["relative_entropy"])
    assert np.isfinite(watched(q, k, np.tri(9, dtype=bool)))
    assert np.isnan(watched(q, k, np.tri(9, dtype=np.float32)))  # 1 for seen is no number that is added to logits
    with pytest.raises(TypeError, match="must be an array of booleans, or one that is added to logits, got int"):
        watched(q, k, np.tri(9, dtype=int))


def test_a_sink_that_takes_all_but_the_smallest_number_leaves_no_spread():
    q, k = np.random.default_rng(0).standard_normal((2, 1, 24, 8)).astype(np.float32)
    plain, far, beyond = (diagnostics.scores(q, k, sink=sink) for sink in (0.0, 30.0, 60.0))
    for name in ("sparsity", "participation"):
        np.testing.assert_allclose(far[name], plain[name], rtol=1e-4)
        assert np.isnan(beyond[name]).all()
    np.testing.assert_allclose(beyond["no_key_weight"], 1)


def test_a_forgotten_scale_of_cosines_is_told():
    x = np.random.default_rng(7).standard_normal((2, 2, 32, 8)).astype(np.float32)
    q, k = x / np.linalg.norm(x, axis=-1, keepdims=True)
    assert any("pass `scale`" in note for note in diagnostics.scores(q, k).notes)
    assert not any("pass `scale`" in note for note in diagnostics.scores(q, k, scale=20.0).notes)
    with pytest.warns(UserWarning, match="Cosines have a scale of their own: pass `scale`"):
        score_metrics(q, k)


def test_axes_by_name():
    q, k = np.random.default_rng(8).standard_normal((2, 1, 8, 64, 16)).astype(np.float32)
    k = k[:, ::4]
    moved = [each.swapaxes(1, 2) for each in (q, k)]
    axes = ("sample", "token", "head", "width")
    right = diagnostics.scores(q, k)
    for call in (diagnostics.scores, score_metrics):
        with pytest.raises(ValueError, match="64 heads of 8 queries and 2 keys, or 64 tokens of 8 heads on 2 of keys"):
            call(*moved)
    named = diagnostics.scores(*moved, axes=axes)
    assert all(np.array_equal(named[name], right[name]) for name in right.measures)
    np.testing.assert_allclose(score_metrics(*moved, axes=axes)["sparsity"], right["sparsity"].mean(), rtol=1e-6)
    grouped = ("sample", "group", "head", "token", "width")  # four groups of two heads, whose keys they share
    alone, shared = q.reshape(1, 4, 2, 64, 16), k[:, ::2]
    expected = diagnostics.scores(q, shared)
    for of_groups in (
        diagnostics.scores(alone, shared, axes=grouped),
        diagnostics.scores([alone], [shared], axes=grouped),
    ):
        assert all(np.array_equal(of_groups[name], expected[name]) for name in expected.measures)
    logged = score_metrics(alone, shared, axes=grouped)
    np.testing.assert_allclose(logged["sparsity"], expected["sparsity"].mean(), rtol=1e-6)
    with pytest.raises(ValueError, match=r"`q`.* 1 samples with 4 groups of 2 heads.*or 1 layers of 4 samples"):
        diagnostics.scores(alone, shared)
    many = q.reshape(1, 32, 16, 16)
    same = diagnostics.scores(many, many, axes=("sample", "head", "token", "width"))
    assert (same.heads, same.tokens) == (32, 16)


@pytest.mark.parametrize("place", ["query", "key"])
def test_nan_is_in_every_number_of_a_log(place):
    q, k = np.random.default_rng(9).standard_normal((2, 2, 8, 4)).astype(np.float32)
    (q if place == "query" else k)[0, 3, 1] = np.nan
    assert all(np.isnan(value) for value in score_metrics(q, k).values())


@pytest.mark.torch
def test_a_scale_may_be_a_parameter_of_torch():
    torch = pytest.importorskip("torch")
    q, k = torch.randn(2, 2, 16, 8, generator=torch.Generator().manual_seed(0))
    learned = torch.nn.Parameter(torch.tensor(0.7))
    a, b = diagnostics.scores(q, k, scale=learned), diagnostics.scores(q, k, scale=0.7)
    np.testing.assert_allclose(a["entropy"], b["entropy"], rtol=1e-6)
    np.testing.assert_allclose(score_metrics(q, k, scale=learned)["sparsity"], b["sparsity"].mean(), rtol=1e-6)
