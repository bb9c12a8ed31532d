"""Hidden states against the definitions, in every precision, and where digits are easily lost."""

import ml_dtypes
import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense

STATES = np.random.default_rng(0).standard_normal((3, 2, 7, 5))  # state, sample, token, feature
STATES += 0.5 * STATES.mean(2, keepdims=True)


@pytest.mark.parametrize("dtype, close", [(np.float32, dense.CLOSE), (ml_dtypes.bfloat16, dict(rtol=1e-4, atol=1e-5))])
def test_every_measure_is_its_definition(dtype, close):
    states = STATES.astype(dtype)
    diagnosis = diagnostics.hidden_states(list(states))
    expected = [[dense.state(sample) for sample in state.astype(float)] for state in states]
    for name in expected[0][0]:
        assert np.allclose(diagnosis[name], [np.mean([s[name] for s in state]) for state in expected], **close), name
    residual = np.array([[s["relative_residual"] for s in state] for state in expected])
    assert np.isnan(diagnosis["residual_rate"][0])
    assert np.allclose(diagnosis["residual_rate"][1:], np.diff(np.log(residual), axis=0).mean(1), **close)
    assert (diagnosis.tokens, diagnosis.samples, diagnosis.layers, diagnosis.causal) == (7, 2, 0, None)
    assert len(diagnosis.notes) == (dtype != np.float32)


def test_an_array_is_its_states_and_a_mask_leaves_tokens_out():
    states = STATES[:, 0].astype(np.float32)
    padded = np.concatenate([states, 1e3 * states[:, :2]], axis=1)
    padded[:, -1] = np.nan
    diagnosis = diagnostics.hidden_states(padded, mask=np.arange(9) < 7)
    alone = diagnostics.hidden_states(states)
    for name in alone.measures:
        assert np.allclose(diagnosis[name], alone[name], equal_nan=True, **dense.CLOSE), name


def test_tokens_that_nearly_agree_keep_their_digits():
    """Residuals of 1e-5 of tokens of size one, whose squares no float32 would see beside them."""
    common = np.array([3.0, 4.0], np.float32)
    apart = np.array([[1.0, 0.0], [-1.0, 0.0]]) * 2.0**-16
    diagnosis = diagnostics.hidden_states([(common + apart).astype(np.float32)])
    assert np.isclose(diagnosis["relative_residual"][0], 2.0**-16 / 5, rtol=1e-3)
    assert 0.9999999 <= diagnosis["cosine"][0] <= 1


def test_a_token_far_larger_than_the_others_leaves_them_their_directions():
    states = STATES[0, 0].astype(np.float32)
    sizes = np.float32([1e25] + [1] * (len(states) - 1))[:, None]
    cosines = [diagnostics.hidden_states([size * states])["cosine"][0] for size in (1, sizes)]
    assert np.isclose(*cosines, **dense.CLOSE)


def test_sizes_do_not_matter():
    signed = STATES[:, 0].astype(np.float32)
    for size, states in ((1e-30, signed), (1e30, signed), (4e37, np.abs(signed))):  # the last add up to infinity
        scaled, plain = diagnostics.hidden_states(size * states), diagnostics.hidden_states(states)
        for name in set(plain.measures) - {"token_norm"}:
            assert np.allclose(scaled[name], plain[name], equal_nan=True, **dense.CLOSE), (name, size)
        assert np.allclose(scaled["token_norm"] / size, plain["token_norm"], **dense.CLOSE)


@pytest.mark.parametrize("normed", [True, False])
def test_a_last_state_before_the_final_norm_is_said(normed):
    states = tuple(np.random.default_rng(0).normal(size=(3, 2, 5, 4)).astype("float32"))
    returned = states[-1] / np.linalg.norm(states[-1], axis=-1, keepdims=True) if normed else states[-1]
    notes = diagnostics.from_transformers({"hidden_states": states, "last_hidden_state": returned}).notes
    assert [note for note in notes if "the final norm, is not in it" in note] == list(notes) and len(notes) == normed
