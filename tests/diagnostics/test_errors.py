"""Bad input gets one clear error that names the argument, the expectation and what came."""

import types

import jax
import numpy as np
import pytest

from rc_jax import diagnostics
from rc_jax.diagnostics.inputs import tolerance
from tests.diagnostics import dense

pytestmark = pytest.mark.usefixtures("as_installed")
N = 6
GOOD = dense.gaussian(0, (2, 2, N, N), 1.0).astype(np.float32)
CAUSAL = dense.gaussian(0, (1, 2, N, N), 1.0, causal=True).astype(np.float32)
STATES = np.random.default_rng(0).standard_normal((3, N, 4)).astype(np.float32)


def changed(value, place=(1, 0, 3, 4)):
    weights = GOOD.copy()
    weights[place] = value
    return weights


NEGATIVE = changed(-0.1)
NEGATIVE[1, 0, 3, 0] += 1 - NEGATIVE[1, 0, 3].sum()
CASES = {
    "sums": (
        dict(weights=2 * GOOD),
        ValueError,
        r"add up to 1, got 2 in layer 0, sample 0, head 0, query 0.*model.eval\(\)",
    ),
    "one row": (dict(weights=changed(0.9)), ValueError, r"add up to 1.*layer 1, sample 0, head 0, query 3"),
    "row of zeros": (
        dict(weights=changed(0, (0, 1, 2))),
        ValueError,
        r"got 0 .*query 2 .*pass `mask`.*normalised=False",
    ),
    "logits": (
        dict(weights=np.random.default_rng(1).standard_normal((1, 2, N, N)).astype(np.float32)),
        ValueError,
        "add up to 1.*if these are logits, take their softmax over keys first",
    ),
    "swapped": (dict(weights=GOOD.swapaxes(-1, -2)), ValueError, "add up to 1.*the last two axes are swapped"),
    "keys of texts": (
        dict(weights=[np.stack([GOOD[0]] * 3)], mask=np.ones((3, N), bool)),
        ValueError,
        r"broadcasts to \(3, 2, 6, 6\), got bool\[3,6\]: keys of each text are mask\[:, None, None, :\]",
    ),
    "negative": (dict(weights=NEGATIVE), ValueError, r"not be negative.*head 0, query 3"),
    "nan": (dict(weights=changed(np.nan)), ValueError, r"finite, got a row with the sum nan in layer 1.*query 3"),
    "infinite": (dict(weights=changed(np.inf)), ValueError, r"finite"),
    "one axis": (dict(weights=GOOD[0, 0, 0]), ValueError, r"axes \(…, heads, tokens, tokens\)"),
    "no heads": (dict(weights=GOOD[0, 0]), ValueError, r"axes \(…, heads, tokens, tokens\).*float32\[6,6\]"),
    "fewer keys": (dict(weights=np.full((2, 6, 4), 0.25, "f4"), causal=True), ValueError, r"6 queries and 4 keys"),
    "a later key": (dict(weights=np.full((2, 2, 4), 0.25, "f4"), causal=True), ValueError, r"weight on later keys"),
    "one key": (dict(weights=np.ones((1, 2, 3, 1), np.float32)), ValueError, r"two keys, got the shape \(2, 3, 1\)"),
    "empty list": (dict(weights=[]), ValueError, r"at least one layer, got an empty list"),
    "no layer": (dict(weights=GOOD[:0]), ValueError, r"at least one layer"),
    "no head": (dict(weights=GOOD[:, :0]), ValueError, r"at least one entry"),
    "mixed dtypes": (
        dict(weights=[GOOD[0], GOOD[1].astype(np.float16)]),
        ValueError,
        r"one dtype in all layers.*layer 1",
    ),
    "mixed shapes": (dict(weights=[GOOD[0], GOOD[1, :, :5, :5]]), ValueError, r"one shape in all layers"),
    "integers": (dict(weights=np.ones((1, 2, 4, 4), int)), TypeError, r"floating-point numbers, got int64\[1,2,4,4\]"),
    "80 bits": (dict(weights=GOOD.astype(np.longdouble)), TypeError, r"`weights` must be an array of JAX, .*float128"),
    "numbers": (dict(weights=[[1.0]]), TypeError, r"array of JAX, NumPy or PyTorch"),
    "masked": (dict(weights=np.ma.masked_array(GOOD)), TypeError, r"got a masked array: pass its numbers, .*filled"),
    "mapping": (
        dict(weights={"0": GOOD}),
        TypeError,
        r"floating-point numbers, or a list, got a dict: pass its values",
    ),
    "text": (dict(weights="weights"), TypeError, r"array of JAX, NumPy or PyTorch"),
    "mask of numbers": (dict(weights=GOOD, mask=np.ones((N, N))), TypeError, r"`mask` must be an array of booleans"),
    "mask of five": (dict(weights=GOOD, mask=np.ones((5, 5), bool)), ValueError, r"`mask`.*broadcasts to \(2, 6, 6\)"),
    "two masks": (
        dict(weights=GOOD[:1], mask=[np.ones((N, N), bool)] * 2),
        ValueError,
        r"one mask or one for each of 1",
    ),
    "no mask of one": (dict(weights=GOOD, mask=[np.ones((N, N), bool), None]), TypeError, r"`mask\[1\]` .*, got None"),
    "outside": (dict(weights=GOOD, mask=np.tri(N, dtype=bool)), ValueError, r"0 where `mask` is False"),
    "mask of one key": (dict(weights=GOOD, mask=np.eye(N, dtype=bool) & False), ValueError, r"see two keys, got none"),
    "mask in another word": (dict(weights=GOOD, mask="full"), ValueError, r"`mask` must be .*'none'.*'causal'"),
    "two words": (dict(weights=GOOD, mask="none", causal=True), ValueError, r"`causal` must agree with mask='none'"),
    "not causal in a word": (dict(weights=GOOD, mask="causal"), ValueError, r"0 above the diagonal if `causal`"),
    "not causal": (dict(weights=GOOD, causal=True), ValueError, r"0 above the diagonal if `causal`"),
    "too large to square": (
        dict(weights=1e25 * GOOD, normalised=False),
        ValueError,
        r"`weights` must have squares that fit float32, got a row with Σ\|a\| = 1e\+25 in layer 0, sample 0, head 0",
    ),
    "too small to square": (dict(weights=1e-25 * GOOD, normalised=False), ValueError, r"squares that fit float32"),
    "threshold": (dict(weights=GOOD, threshold=0.0), ValueError, r"`threshold` must be > 0"),
    "flag": (dict(weights=GOOD, normalised=1), TypeError, r"`normalised` must be a bool"),
    "values of five": (dict(weights=GOOD, values=STATES[None, :2, :5]), ValueError, r"`values` must have 2 layers"),
    "three groups": (dict(weights=GOOD[0], values=STATES), ValueError, r"divisor of the heads"),
    "values not finite": (
        dict(weights=GOOD[0], values=np.full((2, N, 3), np.nan, np.float32)),
        ValueError,
        r"`values`.*finite",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_attention(name):
    arguments, error, message = CASES[name]
    with pytest.raises(error, match=message):
        diagnostics.attention(**arguments)


STATE_CASES = {
    "nan": (dict(states=np.where(STATES > 1, np.nan, STATES)), ValueError, r"`states` must be finite.*state 0"),
    "one token": (dict(states=STATES[:, :1]), ValueError, r"at least two tokens in some text, got 1"),
    "masked": (dict(states=STATES, mask=np.arange(N) < 1), ValueError, r"at least two tokens in some text, got 1"),
    "one axis": (dict(states=[STATES[0, 0]]), ValueError, r"axes \(…, tokens, features\)"),
    "mask of five": (dict(states=STATES, mask=np.ones(5, bool)), ValueError, r"`mask`.*broadcasts to \(6,\)"),
    "empty": (dict(states=()), ValueError, r"empty tuple"),
}


@pytest.mark.parametrize("name", STATE_CASES)
def test_hidden_states(name):
    arguments, error, message = STATE_CASES[name]
    with pytest.raises(error, match=message):
        diagnostics.hidden_states(**arguments)


@pytest.mark.parametrize("more", [{}, {"attention_mask": np.ones((1, N), int)}])
@pytest.mark.parametrize("name", ["attentions", "hidden_states"])
def test_outputs_of_several_steps_are_told_from_those_of_one(name, more):
    """`generate` returns a tuple of layers for each token that it writes."""
    with pytest.raises(ValueError, match=r"one forward pass, got those of several steps, as `generate` returns them"):
        diagnostics.from_transformers({name: ((GOOD[:1], GOOD[1:]), (GOOD[:1, :, -1:], GOOD[1:, :, -1:]))}, **more)


def test_options_are_those_of_attention():
    with pytest.raises(
        ValueError, match=r"`options` must be one of 'mask', .*, got 'treshold'; did you mean 'threshold'"
    ):
        diagnostics.from_transformers({"attentions": (GOOD,)}, treshold=0.2)


def test_what_models_return():
    """Tuples are read; two streams, stages, two models in one and missing ones of a prefix are named."""
    states = tuple(STATES[:, None])
    weights = tuple(GOOD[:, None])
    named = diagnostics.from_transformers({"attentions": weights, "hidden_states": states})
    plain = diagnostics.from_transformers((STATES[-1:], states, weights))
    assert all(np.array_equal(plain[name], named[name], equal_nan=True) for name in named.measures)
    cases = [
        ({"attentions": ((GOOD, GOOD),) * 2}, ValueError, r"two streams, as XLNet gives.*\[each\[0\] for each"),
        (types.SimpleNamespace(text_model_output=1), TypeError, "of two: pass its text_model_output or its vision"),
        ((GOOD, GOOD), TypeError, "return_dict=False, with 0 groups of arrays of square weights and 0 of states"),
        ({"attentions": (GOOD, GOOD[..., :4, :4])}, ValueError, "of stages, as in Swin and Funnel"),
    ]
    for outputs, error, message in cases:
        with pytest.raises(error, match=message):
            diagnostics.from_transformers(outputs)
    prefixed = np.full((2, 1, 4, 6), 1 / 6, np.float32)
    with pytest.raises(ValueError, match="prefix tuning or of a cache, count too, so put ones in front"):
        diagnostics.from_transformers({"attentions": (prefixed,)}, attention_mask=np.ones((2, 4), int))
    hybrid = types.SimpleNamespace(layer_types=["linear_attention", "full_attention"])
    linear = np.full((1, 1, 8, 8), 1 / 8, np.float32)
    read = diagnostics.from_transformers({"attentions": (linear, GOOD[:1])}, config=hybrid)
    assert read.numbers == (1,) and read.tokens == N
    mixed = types.SimpleNamespace(layer_types=["mamba", "hybrid"])
    assert diagnostics.from_transformers({"attentions": (GOOD[:1],)}, config=mixed).numbers == (1,)


def test_outputs_may_be_single_arrays():
    stacked = diagnostics.from_transformers({"attentions": GOOD[:, None], "hidden_states": STATES[:, None]})
    assert (stacked.layers, stacked.samples) == (2, 1)


def test_devices_may_not_be_mixed():
    first, second = jax.devices()[:2]
    layers = [jax.device_put(GOOD[0], first), jax.device_put(GOOD[1], second)]
    with pytest.raises(ValueError, match="one device in all layers"):
        diagnostics.attention(layers)


def test_traced_arrays_are_told_where_to_go():
    with pytest.raises(TypeError, match=r"rc_jax\.diagnostics\.measures"):
        jax.jit(lambda weights: diagnostics.attention(weights)["entropy"])(GOOD)


@pytest.mark.torch
def test_a_device_that_jax_lacks_is_named():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"device that JAX has, got torch.float32\[2,6,6\] on meta"):
        diagnostics.attention(torch.ones(2, N, N, device="meta"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("n", [4, 1000])
def test_the_tolerance_is_that_of_the_rounded_weights(dtype, n):
    """Weights that were rounded to the dtype pass; a row that lacks a few hundredths does not."""
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    weights = dense.gaussian(1, (1, n, n), 3.0).astype(kind)
    assert np.abs(weights.astype(float).sum(-1) - 1).max() < tolerance(kind, n)
    assert tolerance(kind, n) < {"bfloat16": 0.04, "float16": 0.005}.get(dtype, 1e-4)
    assert diagnostics.attention(weights).tokens == n if n == 4 else True
