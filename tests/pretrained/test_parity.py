"""The same hidden states as the transformers library, layer by layer, on the trained model."""

import numpy as np
import pytest

from rc_jax import pretrained
from tests.pretrained import made_up
from tests.pretrained.test_parity_families import ours, reference, transformers

pytestmark = pytest.mark.torch

TEXTS = (
    "Attention is not all you need: pure attention loses rank doubly exponentially with depth.",
    "Return a list of the words in the string. " * 40,
    "x",
)


@pytest.fixture(scope="module")
def trained_reference(trained):
    return transformers.BertModel.from_pretrained(str(trained.folder), attn_implementation="eager").eval()


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_trained_model_agrees_layer_by_layer(trained, trained_reference, text):
    ids = trained.encode(text)
    for mine, theirs in zip(ours(trained, ids), reference(trained_reference, ids), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_trained_model_agrees_in_double_precision(x64, trained, trained_reference):
    wide = pretrained.load(trained.folder, dtype="float64")
    ids = wide.encode(TEXTS[0])
    expected, _ = reference(trained_reference.double(), ids)
    trained_reference.float()
    states = made_up.states(wide, ids)
    assert states.dtype == np.float64
    np.testing.assert_allclose(states, expected, rtol=0, atol=1e-12)


def test_trained_tokenizer_agrees(trained):
    other = transformers.BertTokenizerFast(tokenizer_file=str(trained.folder / "tokenizer.json"))
    for text in (*TEXTS, "Naïve café — 東京, O(n²)?"):
        assert trained.encode(text).tolist() == other(text, truncation=False, padding=False)["input_ids"]
