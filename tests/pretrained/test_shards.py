"""Weights in shards: read as if they were one file, one layer in memory at a time, and every disagreement named."""

import json
import tracemalloc

import chex
import numpy as np
import pytest
from safetensors.numpy import save_file

from rc_jax import pretrained
from tests.pretrained import made_up

INDEX = "model.safetensors.index.json"
NAME = "embeddings.LayerNorm.bias"  # the first, so in the first shard
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def split(folder):
    """Cut the weights of a written checkpoint into two shards; the map from tensors to shards."""
    values = made_up.tensors()
    names = sorted(values)
    shard_of = {name: SHARDS[index % 2] for index, name in enumerate(names)}
    for shard in SHARDS:
        save_file({name: values[name] for name in names if shard_of[name] == shard}, folder / shard)
    (folder / "model.safetensors").unlink()
    return shard_of


@pytest.fixture
def whole(tmp_path):
    return made_up.write(tmp_path / "whole")


@pytest.fixture
def folder(tmp_path):
    """A checkpoint in two shards."""
    made = made_up.write(tmp_path / "shards")
    (made / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": split(made)}))
    return made


def rewrite(folder, change):
    """Change the map of the index."""
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_shards_hold_what_one_file_holds(whole, folder):
    one, two = pretrained.load(whole), pretrained.load(folder)
    chex.assert_trees_all_equal((one.params, one.embeddings), (two.params, two.embeddings))


def test_one_file_goes_before_an_index(whole):
    (whole / INDEX).write_text("{")
    assert pretrained.load(whole).spec.depth == 3


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", r"index.json' must be a JSON file, but cannot be parsed"),
        ("[]", r"index.json' must hold a JSON object, got a list"),
        ("{}", r"index.json' must hold an object `weight_map` from tensors to shards, got None"),
        ('{"weight_map": []}', r"must hold an object `weight_map` .* got \[\]"),
        ('{"weight_map": {"a.b": 3}}', r"tensor 'a.b' must lie in a .safetensors file of the folder itself, got 3 in"),
    ],
)
def test_index_that_is_none(folder, text, match):
    (folder / INDEX).write_text(text)
    with pytest.raises(ValueError, match=match):
        pretrained.load(folder)


@pytest.mark.parametrize(
    "shard", ["../whole/model.safetensors", "/tmp/model.safetensors", "..", "a/b.safetensors", "pytorch_model.bin"]
)
def test_shard_outside_the_folder_or_not_safetensors(folder, shard):
    rewrite(folder, lambda shard_of: shard_of.update({NAME: shard}))
    with pytest.raises(ValueError, match=rf"tensor '{NAME}' must lie in .*, got '.*' in '.*index.json'"):
        pretrained.load(folder)


def test_shard_that_is_not_there(folder):
    (folder / SHARDS[1]).unlink()
    with pytest.raises(FileNotFoundError, match=rf"tensor '.*' lies in '.*{SHARDS[1]}' by '.*{INDEX}', but no"):
        pretrained.load(folder)


def test_shard_that_is_cut_off(folder):
    (folder / SHARDS[1]).write_bytes((folder / SHARDS[1]).read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{SHARDS[1]}' is truncated, corrupted or not a safetensors file"):
        pretrained.load(folder)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda shard_of: shard_of.update({"no.such": SHARDS[0]}),
            rf"tensor 'no.such' is missing in '.*{SHARDS[0]}', where '.*{INDEX}' says it is",
        ),
        (
            lambda shard_of: shard_of.pop(NAME),
            rf"unexpected tensor '{NAME}' in '.*{SHARDS[0]}': '.*{INDEX}' does not say it is there",
        ),
        (
            lambda shard_of: shard_of.update({NAME: SHARDS[1]}),
            rf"unexpected tensor '{NAME}' in '.*{SHARDS[0]}': '.*{INDEX}' does not say it is there",
        ),
    ],
)
def test_index_and_shards_that_disagree(folder, change, match):
    rewrite(folder, change)
    with pytest.raises(ValueError, match=match):
        pretrained.load(folder)


def test_wrong_tensors_are_named_with_their_shard(folder):
    rewrite(folder, lambda shard_of: shard_of.update({"extra.bias": SHARDS[1]}))
    values = made_up.tensors()
    names = sorted(values)[1::2]
    save_file({name: values[name] for name in names} | {"extra.bias": np.zeros(2)}, folder / SHARDS[1])
    with pytest.raises(ValueError, match=rf"unexpected tensor 'extra.bias' in '.*{SHARDS[1]}'"):
        pretrained.load(folder)
    save_file({name: values[name][1:] for name in names} | {"extra.bias": np.zeros(2)}, folder / SHARDS[1])
    with pytest.raises(ValueError, match=rf"tensor '.*' must have shape .* in '.*{SHARDS[1]}', got"):
        pretrained.load(folder)


def test_old_and_new_name_of_one_tensor(tmp_path):
    values = made_up.tensors() | {"embeddings.LayerNorm.beta": np.zeros(8, np.float32)}
    with pytest.raises(ValueError, match=rf"'embeddings.LayerNorm.beta' must not stand beside '{NAME}'"):
        pretrained.load(made_up.write(tmp_path, values=values))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_no_second_copy_is_ever_in_memory(tmp_path, dtype):
    config = made_up.CONFIG | {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 16}
    values = {name: np.zeros(shape, dtype) for name, shape in made_up.shapes(config).items()}
    made_up.write(tmp_path, config, values)
    whole = sum(value.size * 4 for value in values.values())
    del values
    pretrained.load(tmp_path)
    tracemalloc.start()
    checkpoint = pretrained.load(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert checkpoint.params.attention.query.dtype == np.float32
    assert peak < 1.15 * whole  # a layer is a sixteenth; all tensors beside the stack would be twice the whole
