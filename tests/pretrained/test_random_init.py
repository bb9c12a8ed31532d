"""A randomly initialised copy: BERT's own initial distribution, in the checkpoint's shapes."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import network, pretrained
from tests.pretrained import families, made_up


def test_a_copy_has_the_checkpoints_shapes_and_other_numbers(tmp_path, key):
    like = pretrained.load(made_up.write(tmp_path, tokenizer=True))
    copy = pretrained.random_like(key, like)
    assert copy._replace(params=like.params, embeddings=like.embeddings) == like
    chex.assert_trees_all_equal_shapes_and_dtypes(like.params, copy.params)
    x = copy.embed(copy.encode("rank collapse"))
    assert bool(jnp.isfinite(network.apply(copy.params, x, copy.spec)).all())


@pytest.mark.slow
def test_entries_have_the_stated_distribution(dtype, key, trained):
    params = pretrained.random_like(key, dataclasses.replace(trained.spec, depth=2), dtype=dtype)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {dtype}
    for name, leaf in [*params.attention._asdict().items(), *params.mlp._asdict().items()]:
        if leaf is None or name == "parts":
            continue
        if "bias" in name:
            assert not leaf.any()
            continue
        values = np.asarray(leaf, float)
        count = values.size
        assert abs(values.mean()) < 5 * 0.02 / count**0.5, name
        assert abs((values**2).mean() / 0.02**2 - 1) < 5 * (2 / count) ** 0.5, name
        assert abs((values**4).mean() / 0.02**4 - 3) < 5 * (96 / count) ** 0.5, name
    for norm in (params.attention_norm, params.mlp_norm):
        assert (norm.scale == 1).all() and not norm.shift.any()


@pytest.mark.slow
def test_no_two_parts_share_numbers(key, trained):
    drawn = pretrained.random_like(key, trained)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((drawn.params, drawn.embeddings))]
    first = [leaf.flat[:3].tobytes() for leaf in leaves if leaf.std() > 0.01]
    assert len(set(first)) == len(first)
    query = np.asarray(drawn.params.attention.query)
    assert not np.array_equal(query[0], query[1])


SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in ("albert", "qwen3", "gpt_neox")]


@pytest.mark.parametrize("family", ["gpt2", "gemma2", *SLOW])
def test_every_family_starts_as_its_own_models_do(tmp_path, key, family):
    config = families.CONFIGS[family] | {"initializer_range": 0.5}
    like = pretrained.load(made_up.write(tmp_path, config, families.tensors(family)))
    copy = pretrained.random_like(key, like)
    same = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (each.params, each.embeddings)) for each in (like, copy)
    ]
    assert same[0] == same[1]
    assert (copy.final_norm is None) == (family == "albert")
    assert copy.final_norm is None or (copy.final_norm.scale == 1).all()
    attention, mlp, depth = copy.params.attention, copy.params.mlp, copy.spec.depth
    assert mlp is not None
    residual = (2 * depth) ** -0.5 if family == "gpt2" else 1.0
    for leaf, factor in (
        (attention.query, 1),
        (attention.output, residual),
        (mlp.weight_in, 1),
        (mlp.weight_out, residual),
    ):
        drawn = np.unique(leaf)
        assert abs((drawn.astype(float) ** 2).mean() / (0.5 * factor) ** 2 - 1) < 5 * (2 / drawn.size) ** 0.5
    assert np.unique(attention.query).size == attention.query.size / (2 if family == "albert" else 1)
    assert np.unique(attention.key).size == attention.key.size / (1 if family in ("gpt2", "gpt_neox") else 2)
    if family == "albert":
        assert (attention.query[0] == attention.query[1]).all() and (attention.query[1] != attention.query[2]).any()
    if family == "qwen3":
        assert (attention.key[:, 0] == attention.key[:, 1]).all() and (attention.parts["key_norm"] == 1).all()


def test_positions_that_are_not_learned_stay(tmp_path, key):
    config = families.CONFIGS["distilbert"]
    like = pretrained.load(made_up.write(tmp_path, config, families.tensors("distilbert")))
    fixed = like._replace(config=config | {"sinusoidal_pos_embds": True})
    for each, same in ((like, False), (fixed, True)):
        copy = pretrained.random_like(key, each)
        assert copy.embeddings.position is not None and like.embeddings.position is not None
        assert np.array_equal(copy.embeddings.position, like.embeddings.position) == same


def test_positions_of_a_family_without_sinusoids_are_drawn(tmp_path, key):
    config = families.CONFIGS["gpt2"] | {"sinusoidal_pos_embds": True}
    like = pretrained.load(made_up.write(tmp_path, config, families.tensors("gpt2")))
    copy = pretrained.random_like(key, like)
    assert like.embeddings.position is not None and copy.embeddings.position is not None
    assert not np.any(np.asarray(copy.embeddings.position) == like.embeddings.position)


def test_std_is_traced_once(key, trained):
    spec = dataclasses.replace(trained.spec, depth=1, mlp=None)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def draw(key, std):
        return pretrained.random_like(key, spec, std=std).attention.query

    spread = [float(draw(key, std).std()) for std in (0.01, 0.02, 0.04)]
    np.testing.assert_allclose(np.array(spread) / spread[0], [1, 2, 4], rtol=1e-5)


@pytest.mark.parametrize("stated", [1e25, 0, True])
def test_a_deviation_that_is_none_is_refused(tmp_path, key, stated):
    config = families.CONFIGS["gpt2"] | {"initializer_range": stated}
    like = pretrained.load(made_up.write(tmp_path, config, families.tensors("gpt2")))
    with pytest.raises(ValueError, match=r"`initializer_range` must (lie in 1e-06|be a positive number)"):
        pretrained.random_like(key, like)
    drawn = pretrained.random_like(key, like, std=0.1)
    assert abs(float(jnp.std(drawn.embeddings.word)) / 0.1 - 1) < 0.2
