"""The numbers for a log: those of `attention`, also compiled and mapped; and lines of strict JSON."""

import functools
import json
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from rc_jax import diagnostics, training
from rc_jax._numerics import files
from rc_jax.diagnostics import score_metrics
from tests.diagnostics import dense

N = 12


NAMES = ["sparsity", "relative_entropy", "participation", "largest_weight", "sink_weight", "sink_rate", "no_key_weight"]


def drawn(*shape, causal=False):
    return dense.gaussian(0, (*shape, N, N), 2.0, causal).astype(np.float32)


def assert_same(logged, diagnosis):
    """As the means over heads and layers of a diagnosis, which has one number for each."""
    assert set(logged) == set(NAMES)
    assert abs(logged["no_key_weight"]) < 1e-6
    for name in NAMES[:-1]:
        np.testing.assert_allclose(logged[name], diagnosis[name].mean(), rtol=2e-6, err_msg=name)


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.slow), True])
def test_as_attention_says(causal):
    weights = drawn(2, 3, 4, causal=causal)  # layers, samples, heads
    whole = diagnostics.attention(list(weights))
    assert whole.causal == causal
    assert_same(diagnostics.metrics(weights), whole)
    assert_same(diagnostics.metrics({"first": weights[0], "second": weights[1]}), whole)


def test_masks():
    """Of two samples the second is padded: its rows and keys of padding are left out."""
    seen = np.ones((2, N, N), bool)
    seen[1, 7:], seen[1, :, 7:] = False, False
    logits = np.random.default_rng(0).standard_normal((2, 4, N, N)) * 2
    weights = dense.softmax(np.where(seen[:, None], logits, -1e30)).astype(np.float32)
    masked = diagnostics.attention([weights], mask=seen[:, None])
    assert_same(diagnostics.metrics(weights, mask=jnp.asarray(seen[:, None])), masked)


def test_rows_of_zeros_count_as_weight_that_goes_to_no_key():
    """They are neither even nor sharp: spread is that of the other rows, and NaN where there is none."""
    weights = drawn(3, 4)
    zeros = np.isin(np.arange(N), [3, 7])
    weights[:, :, zeros] = 0
    found, others = (jax.jit(diagnostics.metrics)(rows) for rows in (weights, weights[:, :, ~zeros]))
    for name in NAMES[:4]:
        np.testing.assert_allclose(found[name], others[name], rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(found["sink_weight"], others["sink_weight"] * 5 / 6, rtol=1e-6)
    np.testing.assert_allclose(found["no_key_weight"], 1 / 6, rtol=1e-5)
    diagnosis = diagnostics.attention([weights], normalised=False)
    for name in NAMES:
        np.testing.assert_allclose(found[name], diagnosis[name].mean(), rtol=2e-6, err_msg=name)
    nothing = diagnostics.metrics(np.zeros_like(weights))
    assert [name for name in NAMES if math.isnan(nothing[name])] == NAMES[:4]
    np.testing.assert_allclose(nothing["no_key_weight"], 1, rtol=1e-6)  # a mean, which JAX 0.12 rounds


def test_compiled_and_mapped():
    weights = jnp.asarray(drawn(5, 4))
    each = [diagnostics.metrics(sample) for sample in weights]
    mapped = jax.jit(jax.vmap(diagnostics.metrics))(weights)
    for name, value in mapped.items():
        np.testing.assert_allclose(value, [one[name] for one in each], rtol=1e-6, atol=1e-7)
    # Nothing is looked at: NaN passes, and no gradient flows.
    assert all(map(math.isnan, diagnostics.metrics(weights * jnp.nan).values()))
    grown = jax.grad(lambda w: jnp.sum(w) + diagnostics.metrics(w)["participation"])(weights)
    np.testing.assert_array_equal(grown, 1)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_scores_as_scores_say(mask):
    """In a compiled and mapped function, with a scale for each sample; as aux of a gradient."""
    q, k = jax.random.normal(jax.random.key(0), (2, 3, 2, N, 6))
    scales = jnp.array([0.5, 1.0, 2.0])

    def loss(scale, q, k):
        return scale, score_metrics(q, k, scale=scale, mask=mask)

    (_, logged), slope = jax.jit(jax.vmap(jax.value_and_grad(loss, has_aux=True)))(scales, q, k)
    np.testing.assert_array_equal(slope, 1)
    for sample, scale in enumerate(scales):
        one = diagnostics.scores(q[sample], k[sample], scale=scale, mask=mask)
        for name in NAMES[:-1]:
            np.testing.assert_allclose(logged[name][sample], one[name].mean(), rtol=2e-6)
        np.testing.assert_allclose(logged["largest_logit"][sample], one["largest_logit"].max(), rtol=2e-6)
        assert abs(logged["no_key_weight"][sample]) < 1e-6


@pytest.mark.parametrize(
    "weights, mask, error, message",
    [
        ([], None, ValueError, "`weights` must hold at least one layer, got none"),
        (np.ones((2, 3, 3), int), None, TypeError, "`weights` must hold floating-point arrays, got int64"),
        (np.ones((3, 3)), None, ValueError, "`weights` must hold arrays "),
        (types.SimpleNamespace(attentions=()), None, TypeError, "got SimpleNamespace: pass its `attentions`"),
        ([np.ones((2, 3, 3)), "x"], None, TypeError, "`weights` must hold floating-point arrays, got 'x'"),
        (np.ones((2, 3, 3)), np.ones((3, 3)), TypeError, "`mask` must be an array of booleans"),
        (np.ones((2, 3, 3)), np.ones((4, 3), bool), ValueError, r"`mask` must broadcast to \(2, 3, 3\)"),
    ],
)
def test_bad_input(weights, mask, error, message):
    with pytest.raises(error, match=message):
        diagnostics.metrics(weights, mask=mask)


def test_lines_of_json(tmp_path):
    """Strict JSON: other readers see null and text."""
    path = tmp_path / "log.jsonl"
    line = {"step": 3, "loss": jnp.bfloat16(0.5), "rate": np.float32(np.nan), "top": -math.inf, "by_head": np.arange(2)}
    diagnostics.append_line(path, line)
    diagnostics.append_line(str(path), {"step": 4})
    first = json.loads(path.read_text().splitlines()[0], parse_constant=lambda word: pytest.fail(word))
    assert first == {"step": 3, "loss": 0.5, "rate": None, "top": "-Infinity", "by_head": [0, 1]}
    assert json.loads(path.read_text().splitlines()[1]) == {"step": 4}
    for bad in ("text", None, object()):
        with pytest.raises(TypeError, match=r"`line` must hold numbers and arrays of numbers, got .* for 'loss'"):
            diagnostics.append_line(path, {"loss": bad})
    with pytest.raises(TypeError, match=r"got traced float32\[\] for 'loss'"):
        jax.jit(lambda x: diagnostics.append_line(path, {"loss": x}))(1.0)


BAD = [b'{"step": 1, "lo', b"[1, 2]", b"5", b"[" * 100_000, b"\xff", b'{"loss": "high"}', b"nonsense"]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_a_line_begins_on_a_line_of_its_own(tmp_path, bad):
    """After a kill in the middle of a line the others can be read."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 0}\n' + bad)
    for step in (2, 3):
        diagnostics.append_line(path, {"step": step})
    assert path.read_bytes().split(b"\n") == [b'{"step": 0}', bad, b'{"step": 2}', b'{"step": 3}', b""]
    assert [line for _, line in files.json_lines(path)] == [{"step": 0}, None, {"step": 2}, {"step": 3}]


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"a\u2028b\x85": 1,\r"c": 2}\n', encoding="utf-8", newline="")
    diagnostics.append_line(path, {"step": 2})
    assert [line for _, line in files.json_lines(path)] == [{"a\u2028b\x85": 1, "c": 2}, {"step": 2}]


@pytest.mark.slow
def test_as_an_observation_of_a_training(tmp_path):
    """`rc_jax.training` writes the same lines: `observe` returns the metrics of each replicate."""
    x = jax.random.normal(jax.random.key(0), (4, N, 8))

    def build(key, setting):
        return nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(key))

    def loss(model, batch, setting):
        return jnp.mean(jnp.square(model(batch)))

    def observe(model, setting):
        return diagnostics.metrics(diagnostics.flax_weights(model, x))

    done = training.train(
        jax.random.key(1), build, loss, functools.partial(lambda key, step: x),
        steps=4, every=2, optimiser=optax.sgd(0.1), observe=observe, folder=tmp_path,
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4]
    np.testing.assert_allclose([line["sparsity"][0][0] for line in lines], done.metrics["sparsity"][0, 0], rtol=1e-6)
    last = diagnostics.metrics(diagnostics.flax_weights(done.model(), x))
    np.testing.assert_allclose(lines[-1]["participation"], [[last["participation"]]], rtol=1e-5)


@pytest.mark.torch
def test_tensors_of_pytorch():
    torch = pytest.importorskip("torch")
    scores = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weights, causal = torch.softmax(scores, -1), torch.ones(8, 8, dtype=torch.bool).tril()
    hidden = torch.softmax(scores.masked_fill(~causal, -torch.inf), -1)
    q, k = scores[..., :4], scores[..., 4:]
    for mine, same in (
        (diagnostics.metrics([weights]), diagnostics.metrics(weights.detach().numpy())),
        (diagnostics.metrics(hidden, mask=causal), diagnostics.metrics(hidden.detach().numpy())),
        (score_metrics(q, k), score_metrics(q.detach().numpy(), k.detach().numpy())),
        (score_metrics(q, k, mask=causal), score_metrics(q.detach().numpy(), k.detach().numpy(), mask="causal")),
    ):
        assert all(np.allclose(mine[name], same[name], rtol=1e-6) for name in same)


def test_a_mask_of_keys_leaves_weights_causal():
    weights = dense.gaussian(0, (3, 4, N, N), 2.0, causal=True).astype(np.float32)
    real = np.arange(N) < np.array([N, 9, 5])[:, None]
    logits = np.log(np.maximum(weights, 1e-30)) + np.where(real, 0, -1e30)[:, None, None]
    weights = dense.softmax(logits + np.where(np.tri(N, dtype=bool), 0, -1e30)).astype(np.float32)
    masked = diagnostics.attention([weights], mask=real[:, None, None])
    assert masked.causal
    assert_same(diagnostics.metrics(weights, mask=real[:, None, None]), masked)
    assert_same(diagnostics.metrics(weights, mask=real[:, None, None] & np.tri(N, dtype=bool)), masked)


def test_padding_on_the_left():
    """The first key is the first real one of each sample, as where a model's own mask is given."""
    real = np.arange(N) >= np.array([0, 3, 7])[:, None]
    seen = real[:, None, :, None] & real[:, None, None] & np.tri(N, dtype=bool)
    logits = np.random.default_rng(1).standard_normal((3, 4, N, N))
    weights = np.where(seen, dense.softmax(np.where(seen, logits, -1e30)), 0).astype(np.float32)
    logged = diagnostics.metrics(weights, mask=seen)
    apart = [diagnostics.metrics(weights[[i], ..., -k:, -k:]) for i, k in enumerate((N, N - 3, N - 7))]
    for name in NAMES:
        np.testing.assert_allclose(logged[name], np.mean([each[name] for each in apart]), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("jitted", [False, True])
def test_rows_of_padding_on_the_left_may_hold_anything(jitted):
    """A decoder leaves them even over all keys, the later ones too; its tokens' mask alone is given."""
    real = np.arange(N) >= np.array([0, 5])[:, None]
    seen = real[:, None, None] & np.tri(N, dtype=bool)
    logits = np.random.default_rng(1).standard_normal((2, 4, N, N))
    weights = dense.softmax(np.where(seen, logits, -1e30)).astype(np.float32)
    measured = functools.partial(diagnostics.metrics, weights)
    compiled = jax.jit(lambda mask: measured(mask=mask))
    logged = compiled(real[:, None, None]) if jitted else measured(mask=real[:, None, None])
    assert_same(logged, diagnostics.attention([weights], mask=real[:, None, None]))


@pytest.mark.parametrize("wrong", ["inverted", "of other texts"])
def test_weight_where_nothing_may_be_seen(wrong):
    """An error; NaN in a trace. A mask whose axes fit by chance hides what has weight."""
    real = np.arange(N) < np.full(N, 7)[:, None]
    real[0] = True
    logits = np.random.default_rng(2).standard_normal((N, 4, N, N))
    weights = dense.softmax(np.where(real[:, None, None], logits, -1e30)).astype(np.float32)
    mask = ~real[:, None, None] if wrong == "inverted" else real
    with pytest.raises(ValueError, match="`weights` must be 0 where `mask` is False, got a magnitude of 0"):
        diagnostics.metrics(weights, mask=mask)
    assert all(map(math.isnan, jax.jit(diagnostics.metrics)(weights, mask=jnp.asarray(mask)).values()))


def test_one_nan_is_seen_in_every_number_of_its_row():
    weights = drawn(1, 2)
    weights[0, 1, 5, 3] = np.nan
    logged = diagnostics.metrics(weights)
    assert all(math.isnan(logged[name]) for name in NAMES if not name.startswith("sink"))


@pytest.mark.parametrize("jitted", [False, True])
def test_nan_on_a_hidden_key_of_a_row_that_sees(jitted):
    weights, mask = drawn(1, 2), np.arange(N)[None] != 3
    weights = np.where(mask, weights, 0)
    weights /= weights.sum(-1, keepdims=True)
    weights[0, 1, 5, 3] = np.nan
    if jitted:
        assert all(map(math.isnan, jax.jit(diagnostics.metrics)(weights, mask=jnp.asarray(mask)).values()))
    else:
        with pytest.raises(ValueError, match="must be 0 where `mask` is False, got a magnitude of nan"):
            diagnostics.metrics(weights, mask=mask)


def test_signed_weights_have_no_entropies():
    first, second = drawn(2, 4)
    logged = diagnostics.metrics(first - 0.8 * second)
    names = ("relative_entropy", "largest_weight", "sink_weight", "sink_rate")
    assert all(math.isnan(logged[name]) == (name in names) for name in NAMES)


@pytest.mark.parametrize("stated", ["ids", "mask"])
def test_packed_texts_are_measured_each(stated):
    """As `attention` does: the mean of each text, from its own first key on; a head that sees nothing is none."""
    ids = np.array([[1] * 5 + [2] * 7, [1] * 8 + [-1] * 4])
    seen = ((ids[:, :, None] == ids[:, None]) & (ids > 0)[:, None] & np.tri(N, dtype=bool))[:, None]
    logits = np.random.default_rng(3).standard_normal((2, 3, N, N))
    weights = np.where(seen, dense.softmax(np.where(seen, logits, -1e30)), 0).astype(np.float32)
    given = {"segment_ids": ids} if stated == "ids" else {"mask": seen}
    assert_same(diagnostics.metrics(weights, **given), diagnostics.attention([weights], **given))
    assert_same(jax.jit(diagnostics.metrics)(weights, **given), diagnostics.attention([weights], **given))
    blind = np.broadcast_to(seen, (2, 3, N, N)).copy()
    blind[:, 1] = False
    logged = diagnostics.metrics(weights, mask=blind)
    expected = diagnostics.attention([weights[:, [0, 2]]], mask=seen)
    np.testing.assert_allclose(logged["relative_entropy"], expected["relative_entropy"].mean(), rtol=2e-6)
