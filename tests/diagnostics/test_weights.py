"""Attention weights against the definitions, known cases, and every kind of array."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from rc_jax import diagnostics, scale
from rc_jax.diagnostics.spectrum import leading_singular_values
from tests.diagnostics import dense

N = 12
FULL = np.ones((N, N), bool)
CAUSAL = np.tri(N, dtype=bool)


def check(diagnosis, layer, head, expected):
    for name, value in expected.items():
        if name in diagnosis.measures:
            assert np.allclose(diagnosis[name][layer, head], value, **dense.CLOSE), (
                name,
                diagnosis[name][layer, head],
                value,
            )


@pytest.mark.parametrize("causal", [False, True])
def test_every_measure_is_its_definition(causal):
    weights = np.stack([dense.gaussian(0, (2, N, N), 1.0, causal), dense.gaussian(1, (2, N, N), 3.0, causal)])
    diagnosis = diagnostics.attention(weights.astype(np.float32), full_spectrum=True)
    assert (diagnosis.layers, diagnosis.heads, diagnosis.tokens, diagnosis.samples, diagnosis.causal) == (
        2,
        2,
        N,
        1,
        causal,
    )
    seen = CAUSAL if causal else FULL
    for layer in range(2):
        for head in range(2):
            check(diagnosis, layer, head, dense.head(weights[layer, head], seen))
    assert set(dense.head(weights[0, 0], seen)) | {"entropy_scale", "scale_ratio"} == set(diagnosis.measures)


def test_samples_are_averaged_and_a_list_is_a_list_of_layers():
    weights = dense.gaussian(2, (3, 2, N, N), 4.0).astype(np.float32)
    weights[1, 0, :, 0] = 1
    weights[1, 0, :, 1:] = 0
    together = diagnostics.attention([weights])
    alone = [diagnostics.attention([weights[sample]]) for sample in range(3)]
    assert (together.layers, together.samples) == (1, 3)
    for name in set(together.measures) - {"strongest_key", "strongest_share"}:
        assert np.allclose(together[name], np.mean([each[name] for each in alone], axis=0), **dense.CLOSE), name
    # The strongest key is the one that is so in most samples, and rates are shares of samples.
    strongest = weights.mean(2)
    keys = strongest.argmax(-1)
    assert np.array_equal(together.by_text["strongest_key"][:, 0], keys)
    assert np.allclose(together.by_text["strongest_weight"][:, 0], strongest.max(-1), **dense.CLOSE)
    counts = [np.bincount(keys[:, head]) for head in range(2)]
    assert together["strongest_key"][0].tolist() == [each.argmax() for each in counts]
    assert np.allclose(together["strongest_share"][0], [each.max() / 3 for each in counts])
    assert np.allclose(together["strongest_first"][0], (keys == 0).mean(0))
    assert np.isclose(together["sink_rate"][0, 0], 1 / 3)
    as_layers = diagnostics.attention(weights)
    assert (as_layers.layers, as_layers.samples) == (3, 1)


def test_known_cases():
    even = np.full((1, N, N), 1 / N, np.float32)
    single = np.zeros((1, N, N), np.float32)
    single[:, :, 3] = 1
    causal = (CAUSAL / np.arange(1, N + 1)[:, None])[None].astype(np.float32)
    sink = np.full((1, N, N), 0.5 / (N - 1), np.float32)
    sink[..., 0] = 0.5
    diagnosis = diagnostics.attention([even, single, sink])
    assert np.allclose(diagnosis["sparsity"].ravel(), [1, N**-0.5, (N * (0.25 + 0.25 / (N - 1))) ** -0.5])
    assert np.allclose(diagnosis["participation"].ravel(), [N, 1, 1 / (0.25 + 0.25 / (N - 1))])
    assert np.allclose(diagnosis["entropy"].ravel(), [np.log(N), 0, np.log(2) + 0.5 * np.log(N - 1)], **dense.CLOSE)
    assert np.allclose(diagnosis["second_singular_value"], 0, atol=1e-5)
    assert diagnosis["sink_rate"].ravel().tolist() == [0, 0, 1]
    assert diagnosis["strongest_key"].ravel().tolist()[1:] == [3, 0]
    assert diagnosis["entropy_scale"][1, 0] == np.inf and diagnosis["entropy_scale"][0, 0] < 2e-3
    decoder = diagnostics.attention(causal)
    assert decoder.causal
    assert np.allclose(decoder["sparsity"], 1) and np.allclose(decoder["participation"], np.arange(2, N + 1).mean())
    assert np.allclose(decoder["sink_weight"], np.mean(1 / np.arange(1, N + 1)))


def test_alpha_is_compared_with_the_scale_of_most_gradient():
    full = diagnostics.attention(dense.gaussian(3, (1, N, N), 2.0).astype(np.float32))
    ratio = full["entropy_scale"] / full["scale_ratio"]
    assert np.allclose(ratio, float(scale.optimal_scale_exact(float(N))), rtol=1e-6)
    causal = diagnostics.attention(dense.gaussian(3, (1, N, N), 2.0, causal=True).astype(np.float32))
    best = np.mean(np.asarray(scale.optimal_scale_exact(np.arange(2.0, N + 1, dtype=np.float32))))
    assert np.allclose(causal["entropy_scale"] / causal["scale_ratio"], best, rtol=1e-5)


def test_a_mask_may_be_a_word():
    weights = np.tril(np.ones((1, 2, 4, 4), np.float32))
    weights /= weights.sum(-1, keepdims=True)
    for word, causal, mask in (("causal", True, np.tri(4, dtype=bool)), ("none", False, np.ones((4, 4), bool))):
        diagnosis = diagnostics.attention(weights, mask=word)
        assert diagnosis.causal is causal
        assert np.array_equal(
            diagnosis["sparsity"], diagnostics.attention(weights, mask=mask, causal=causal)["sparsity"]
        )
    assert (diagnostics.attention(weights, mask="none")["sparsity"] < 0.9).all()


def test_a_mask_limits_keys_and_leaves_rows_out():
    """The keys of a window of three, and the last two tokens are padding, whose rows hold anything."""
    window = CAUSAL & ~np.tri(N, k=-3, dtype=bool)
    window[-2:] = False
    logits = np.random.default_rng(4).standard_normal((2, N, N))
    weights = dense.softmax(np.where(window | (np.arange(N)[:, None] >= N - 2), logits, -1e9)).astype(np.float32)
    weights[:, -1] = np.nan
    diagnosis = diagnostics.attention(weights, mask=window, full_spectrum=True)
    for head in range(2):
        check(diagnosis, 0, head, dense.head(np.where(window.any(-1)[:, None], weights[head], 0).astype(float), window))
    by_layer = diagnostics.attention([weights, weights], mask=[window, jnp.asarray(window)[None]])
    assert np.array_equal(by_layer["entropy"][1], diagnosis["entropy"][0])
    # A mask for each sample: the measures are those of each sample alone.
    other = np.tri(N, dtype=bool)
    both = np.stack([weights, dense.gaussian(5, (2, N, N), causal=True).astype(np.float32)])
    mixed = diagnostics.attention([both], mask=np.stack([window, other])[:, None])
    alone = [diagnostics.attention(part, mask=mask) for part, mask in zip(both, (window, other), strict=True)]
    for name in ("sparsity", "relative_entropy", "sink_weight", "entropy_scale", "scale_ratio"):
        assert np.allclose(mixed[name], (alone[0][name] + alone[1][name]) / 2, **dense.CLOSE), name


def test_values_tell_what_the_first_key_adds():
    weights = dense.gaussian(6, (4, N, N), 2.0, causal=True)
    values = np.random.default_rng(7).standard_normal((2, N, 5))  # two groups of two heads
    diagnosis = diagnostics.attention(weights.astype(np.float32), values=values.astype(np.float32))
    for head in range(4):
        v = values[head // 2]
        output = weights[head] @ v
        first = np.linalg.norm(np.outer(weights[head][:, 0], v[0])) / np.linalg.norm(output)
        ratio = np.linalg.norm(v[0]) / np.linalg.norm(v[1:], axis=1).mean()
        assert np.isclose(diagnosis["sink_output_share"][0, head], first, **dense.CLOSE)
        assert np.isclose(diagnosis["sink_value_ratio"][0, head], ratio, **dense.CLOSE)


def test_values_of_padding_are_left_out():
    """Two texts, the second of eight tokens: the mean over texts, whatever the values of its padding are."""
    seen = np.stack([FULL, (np.arange(N) < 8)[:, None] & (np.arange(N) < 8)])[:, None]
    weights = dense.softmax(np.where(seen, np.random.default_rng(14).standard_normal((2, 2, N, N)), -1e9))
    values = np.random.default_rng(15).standard_normal((2, 2, N, 5)).astype(np.float32)
    values[1, :, 8:] = np.nan
    diagnosis = diagnostics.attention([weights.astype(np.float32)], mask=seen, values=[values])
    alone = [
        diagnostics.attention(p[:, :n, :n].astype(np.float32), values=v[:, :n])
        for p, v, n in zip(weights, values, (N, 8), strict=True)
    ]
    for name in ("sink_value_ratio", "sink_output_share"):
        assert np.allclose(diagnosis[name], (alone[0][name] + alone[1][name]) / 2, **dense.CLOSE), name


def test_a_token_that_nobody_sees_is_none_of_the_text():
    """Neither its row nor its column counts, and the first key is the next one."""
    seen = np.broadcast_to(np.arange(N) > 0, (N, N))
    diagnosis = diagnostics.attention((seen / seen.sum(-1, keepdims=True))[None].astype(np.float32), mask=seen)
    assert np.allclose(diagnosis["sink_weight"], 1 / (N - 1)) and np.allclose(diagnosis["sparsity"], 1)
    assert diagnosis.by_text["start"] == 1 and diagnosis.by_text["tokens"] == N - 1


def test_a_first_key_that_a_head_does_not_see_is_no_sink():
    seen = np.ones((1, 2, N, N), bool)
    seen[0, 1, :, 0] = False
    weights = (seen / seen.sum(-1, keepdims=True)).astype(np.float32)
    diagnosis = diagnostics.attention([weights], mask=seen)
    assert np.isnan(diagnosis["sink_weight"]).tolist() == [[False, True]] and "–" in str(diagnosis)


def test_the_byte_order_of_another_machine_is_read():
    weights = dense.gaussian(16, (2, N, N), 2.0).astype(np.float32)
    swapped, same = (diagnostics.attention(each) for each in (weights.astype(">f4"), weights))
    assert all(np.array_equal(swapped[name], same[name]) for name in same.measures)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_precisions_are_read_as_they_are(dtype):
    exact = dense.gaussian(8, (2, N, N), 2.0)
    rounded = exact.astype(dtype)
    diagnosis = diagnostics.attention(rounded, full_spectrum=True)
    for head in range(2):
        own = rounded[head].astype(np.float64)
        expected = dense.head(own, FULL) | {"participation": np.mean(own.sum(-1) ** 2 / (own**2).sum(-1))}
        check(diagnosis, 0, head, {name: value for name, value in expected.items() if name != "numerical_rank"})
    assert len(diagnosis.notes) == 1 and str(np.dtype(dtype)) in diagnosis.notes[0]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_tensors_of_pytorch(dtype):
    torch = pytest.importorskip("torch")
    tensor = torch.softmax(torch.randn(2, 3, N, N, dtype=getattr(torch, dtype)), -1).requires_grad_()
    layers = tuple(tensor.unbind(0))
    diagnosis = diagnostics.attention(layers, mask=torch.ones(N, N, dtype=torch.bool))
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    same = diagnostics.attention(tensor.detach().to(torch.float64).numpy().astype(kind))
    wide = torch.cat([tensor, tensor], dim=-1).unbind(0)
    views = diagnostics.attention([layer[..., N:] for layer in wide])  # parts of larger tensors
    for name in ("sparsity", "entropy", "second_singular_value", "sink_weight"):
        assert np.allclose(diagnosis[name], same[name], **dense.CLOSE), name
        assert np.array_equal(views[name], diagnosis[name]), name


def test_weights_that_are_no_distribution():
    signed = np.random.default_rng(10).standard_normal((2, N, N))
    diagnosis = diagnostics.attention(signed.astype(np.float32), normalised=False)
    assert "entropy" not in diagnosis.measures and "sink_weight" not in diagnosis.measures
    assert "signed" in diagnosis.notes[0] and "entropy_scale, scale_ratio" in diagnosis.notes[0]
    magnitude = np.abs(signed)
    assert np.allclose(
        diagnosis["participation"][0], (magnitude.sum(-1) ** 2 / (signed**2).sum(-1)).mean(-1), **dense.CLOSE
    )
    assert np.allclose(diagnosis["row_sum"][0], signed.sum(-1).mean(-1), **dense.CLOSE)
    assert "sum" in str(diagnosis) and "Unusual" not in diagnosis.table(compare=False)


def test_rows_of_zeros_are_not_even():
    """What is measured of the other rows is as if these saw nothing, the scales of rows of other lengths included."""
    weights = dense.gaussian(18, (1, 2, N, N), 1.0, True).astype(np.float32)
    hidden = np.broadcast_to(CAUSAL, weights.shape[1:]).copy()
    weights[0, 0, [4, 9]], hidden[0, [4, 9]] = 0, False
    found = diagnostics.attention(weights, mask="causal", normalised=False)
    others = diagnostics.attention(weights, mask=hidden)
    names = (
        "sparsity",
        "entropy",
        "relative_entropy",
        "participation",
        "largest_weight",
        "entropy_scale",
        "scale_ratio",
    )
    for name in names:
        np.testing.assert_allclose(found[name], others[name], rtol=1e-6, err_msg=name)
    assert found["row_sum"].round(6).tolist() == [[round(9 / 11, 6), 1]]  # of the rows that see two keys
    assert any(note.startswith("Rows of zeros that may see two keys or more: 2.") for note in found.notes)
    nothing = diagnostics.attention(0 * weights, mask="causal", normalised=False)
    assert np.isnan([nothing[name] for name in names]).all() and (nothing["no_key_weight"] == 1).all()


@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_sizes_of_signed_weights_do_not_matter(size):
    """Of more keys than there are Lanczos steps, with two singular values that stand apart."""
    signed = np.random.default_rng(17).standard_normal((1, 40, 40))
    signed += 40 * np.eye(40)[3][:, None] * np.eye(40)[5] + 20 * np.eye(40)[8][:, None] * np.eye(40)[2]
    unscaled, scaled = (diagnostics.attention((s * signed).astype(np.float32), normalised=False) for s in (1, size))
    for name in set(unscaled.measures) - {"row_sum"}:
        assert np.allclose(scaled[name], unscaled[name], rtol=1e-4), name


@settings(max_examples=5, deadline=None)
@given(st.permutations(range(1, 6)), st.integers(0, 100))
def test_the_order_of_keys_does_not_matter_and_that_of_heads_is_kept(order, seed):
    """All but the first key change places."""
    weights = dense.gaussian(seed, (2, 6, 6), 2.0).astype(np.float32)
    ordered, mixed = (diagnostics.attention(each) for each in (weights, weights[::-1, :, [0, *order]]))
    for name in set(ordered.measures) - {"strongest_key", "self_weight", "previous_weight"}:
        assert np.allclose(ordered[name][:, ::-1], mixed[name], rtol=1e-4, atol=1e-5), name
    assert np.array_equal(np.array([0, *order])[mixed["strongest_key"].astype(int)], ordered["strongest_key"][:, ::-1])


def spectra(n):
    """Matrices whose second singular value is hard or easy to find."""
    rng = np.random.default_rng(11)
    yield np.eye(n)
    yield np.eye(n)[rng.permutation(n)]
    yield np.full((n, n), 1 / n)
    yield np.eye(n)[np.zeros(n, int)]
    for alpha in (0.3, 1.0, 3.0, 6.0):
        yield dense.gaussian(12, (n, n), alpha)
        yield dense.gaussian(13, (n, n), alpha, causal=True)
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    yield dense.softmax(rng.standard_normal((n, n)) - 0.1 * distance)
    yield dense.softmax(rng.standard_normal((n, n)) + 8.0 * (np.arange(n) == 0))


@pytest.mark.parametrize("n", [2, 3, 20, pytest.param(1024, marks=pytest.mark.slow)])
def test_two_singular_values_without_a_decomposition(n):
    matrices = np.stack(list(spectra(n)))
    whole = jnp.ones((1, n), jnp.float32)
    values = np.asarray(jax.jit(leading_singular_values)(jnp.asarray(matrices, jnp.float32), (whole, whole)))[:, 0]
    # Their squares are the two largest eigenvalues of AᵀA: to 10⁻⁸ of the largest, and in a third of the time.
    ends = [n - 2, n - 1]
    squares = np.stack([scipy.linalg.eigvalsh(a.T @ a, subset_by_index=ends)[::-1] for a in matrices])
    exact = np.sqrt(np.maximum(squares, 0))
    rounding = 1e-5 * exact[:, 0]
    assert (values <= exact + rounding[:, None]).all()
    assert (values[:, 0] >= 0.998 * exact[:, 0]).all()
    assert (values[:, 1] >= 0.97 * exact[:, 1] - rounding).all()


def test_the_example_of_the_paper_counts_sinks_per_sample():
    """Gu et al.'s program: A/(T − k) summed over queries, above 0.3, mean over samples, layers and heads."""
    weights = np.stack([dense.gaussian(seed, (5, 3, N, N), 1.0, causal=True) for seed in range(2)])
    logits = np.log(np.maximum(weights, 1e-30))
    logits[..., 0] += np.linspace(-1, 3, 15).reshape(5, 3)[None, ..., None]
    weights = dense.softmax(np.where(CAUSAL, logits, -np.inf))
    ratios = np.arange(N, 0, -1)
    theirs = ((weights / ratios).sum(-2) > 0.3).mean((1, 2))[:, 0]
    diagnosis = diagnostics.attention(list(weights.astype(np.float32)))
    assert np.allclose(diagnosis["sink_rate"].mean(-1), theirs) and 0 < theirs[0] < 1
