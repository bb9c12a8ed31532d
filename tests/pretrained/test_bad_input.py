"""One clear error for each way in which a checkpoint or an argument can be wrong."""

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rc_jax import pretrained, study
from rc_jax.attention import AttentionSpec
from rc_jax.network import StackSpec
from rc_jax.pretrained.config import Config
from tests.pretrained import families, made_up
from tests.pretrained.test_families import write as write_family


@pytest.fixture
def folder(tmp_path):
    return made_up.write(tmp_path / "checkpoint", tokenizer=True)


def test_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`folder` must be an existing folder .* got '.*nowhere'"):
        pretrained.load(tmp_path / "nowhere")
    fetch = "hf download google-bert/bert-base-uncased --local-dir bert-base-uncased"
    with pytest.raises(FileNotFoundError, match=rf"got 'google-bert/bert-base-uncased'; for a repository .*{fetch}$"):
        pretrained.load("google-bert/bert-base-uncased")
    with pytest.raises(TypeError, match=r"`folder` must be a path .* got 3"):
        pretrained.load(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(FileNotFoundError, match=r"`folder` must hold a file config.json"):
        pretrained.load(tmp_path)


def test_weights_missing(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold a file model.safetensors, or .* got '.*' without one"):
        pretrained.load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(
        FileNotFoundError, match=r"pytorch_model.bin: that is a pickle, .* runs whatever code .* refused"
    ):
        pretrained.load(folder)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "language_model.model."])
def test_a_module_around_the_model_is_named(tmp_path, prefix):
    values = {prefix + name: value for name, value in made_up.tensors().items()}
    folder = made_up.write(tmp_path / "wrapped", values=values)
    with pytest.raises(ValueError, match=rf"is missing in .*, which has '{prefix}.*': save the model inside alone"):
        pretrained.load(folder)


def test_a_file_of_settings_that_is_too_large_is_not_read(folder):
    with (folder / "config.json").open("r+b") as file:
        file.truncate(6 * 2**30)  # of which the disk holds nothing
    with pytest.raises(ValueError, match=r"config.json'.* it has 6442450944 bytes, and must have 1 to 4194304"):
        pretrained.load(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")
def test_what_is_no_regular_file_is_called_what_it_is(tmp_path):
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    for place in (pipe, tmp_path):
        with pytest.raises(
            ValueError, match=r"config.json' must be a JSON file, but it is a named pipe and no regular"
        ):
            study.architecture(place)
    pipe.unlink()
    pipe.mkdir()
    with pytest.raises(ValueError, match=r"config.json' must be a JSON file, but it is a folder and no regular file"):
        Config.read(tmp_path)
    with pytest.raises(ValueError, match=r"'/dev/zero' must be a JSON file, but it is a device and no regular file"):
        study.architecture("/dev/zero")


def test_an_albert_of_very_many_layers_is_refused_before_memory_is_asked_for(tmp_path):
    """10 000 layers of one that is stored: 36 MB here, 10 GB where the layer has 0.4 MB."""
    settings = families.CONFIGS["albert"] | {"num_hidden_groups": 1, "num_hidden_layers": 24}
    values = {name: value for name, value in families.tensors("albert").items() if "layer_groups.1." not in name}
    write_family(tmp_path, "albert", values, num_hidden_groups=1, num_hidden_layers=24)
    assert pretrained.load(tmp_path).spec.depth == 24
    (tmp_path / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 10_000}))
    with pytest.raises(ValueError, match=r"at most 64 times the numbers that are stored, .* got 10000 layers of \d+ "):
        pretrained.load(tmp_path)


ESCAPE = "\x1b]0;pwned\x07"


def test_no_name_in_a_file_acts_on_a_terminal(folder):
    """Names of tensors and of shards, and what the reader of a broken header says of it."""
    weights = folder / "model.safetensors"
    values = load_file(weights)
    save_file(values | {f"{ESCAPE}a": np.zeros(1, np.float32)}, weights)
    with pytest.raises(ValueError, match="names must be printable in ") as caught:
        pretrained.load(folder)
    assert f"{caught.value}".isprintable()
    header = json.dumps({"a": {"dtype": ESCAPE, "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ValueError, match="not a safetensors file") as caught:
        pretrained.load(folder)
    assert f"{caught.value}".isprintable()
    weights.unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": f"{ESCAPE}.safetensors"}}))
    with pytest.raises(ValueError, match="names must be printable in ") as caught:
        pretrained.load(folder)
    assert f"{caught.value}".isprintable()


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 5000,
    "pair": [],
    "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2] * 20_000, "tokens": ["[CLS]"] * 20_000}},
}


@pytest.mark.parametrize(
    ("part", "value", "match"),
    [
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [REPLACE] * 12},
            r"up to 1e\+12 times as long, at most 4096",
        ),
        ("normalizer", {"type": "Sequence", "normalizers": [REPLACE | {"pattern": {"Regex": "x*"}}] * 12}, "as long"),
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a" * 60_000}] * 2},
            "120000 l",
        ),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////w" + 1002 * "A"}, "4294967295 of which"),
        ("post_processor", TEMPLATE, "a template of 100000000 ids, at most 100000"),
    ],
)
def test_a_tokenizer_that_would_use_up_the_memory_is_refused(tmp_path, part, value, match):
    """The package tokenizers would end the process."""
    made_up.write(tmp_path, tokenizer=True)
    checkpoint, file = pretrained.load(tmp_path), tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {part: value}))
    with pytest.raises(ValueError, match=match):
        checkpoint.encode("rank collapse")


@pytest.mark.parametrize(
    ("content", "match"),
    [("{", "cannot be parsed"), ("[" * 100_000, "cannot be parsed"), ("[]", "must hold a JSON object, got a list")],
)
def test_config_that_is_none(folder, content, match):
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=rf"config.json'.* {match}"):
        pretrained.load(folder)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("model_type", "t5", "`model_type` must be one of 'bert', .* in '.*config.json', got 't5'"),
        ("model_type", "modernbert", "`model_type` must be of a family that is read: its first layer has no norm"),
        ("text_config", {"model_type": "t5"}, "`text_config.model_type` must be one of 'bert', "),
        ("model_type", None, "`model_type` must be one of 'bert', "),
        ("hidden_size", "8", "`hidden_size` must be an integer >= 1 in '.*config.json', got '8'"),
        ("num_hidden_layers", 0, "`num_hidden_layers` must be an integer >= 1"),
        ("num_hidden_layers", 10**9, "`num_hidden_layers` must be at most 10000 in '.*config.json', got 1000000000"),
        ("num_hidden_layers", 10**4, "tensor 'encoder.layer.9999.attention.self.query.weight' is missing in"),
        ("vocab_size", None, "`vocab_size` must be an integer >= 1"),
        ("num_attention_heads", 3, "`num_attention_heads` must divide hidden_size=8 in '.*config.json', got 3"),
        ("hidden_act", "mish", "`hidden_act` must be one of 'gelu', .* got 'mish'"),
        ("layer_norm_eps", -1, "`layer_norm_eps` must be a positive number .* got -1"),
        ("layer_norm_eps", 10**400, "`layer_norm_eps` must be a positive number .* got 1000"),
        ("layer_norm_eps", 1e-300, "`layer_norm_eps` must lie in 1e-30 … 1e\\+30, .* in '.*config.json', got 1e-300"),
        ("position_embedding_type", "relative_key", "`position_embedding_type` must be one of 'absolute'"),
        ("is_decoder", True, "`is_decoder` must be one of False .* got True"),
    ],
)
def test_settings(folder, name, value, match):
    config = {key: item for key, item in (made_up.CONFIG | {name: value}).items() if item is not None}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=match):
        pretrained.load(folder)


QUERY = "encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({QUERY: np.zeros((8, 8), np.int32)}, f"tensor '{QUERY}' must hold floating-point numbers .* got I32"),
        ({QUERY: np.full((8, 8), np.nan, np.float32)}, f"tensor '{QUERY}' must be finite in '.*', got NaN or infinity"),
        ({"x\ny": np.zeros(1)}, r"names must be printable in .*, got 'x\\ny'"),
        ({f"x{i}": np.zeros(1) for i in range(5)}, "unexpected tensor 'x0', 'x1', 'x2' and 2 more in"),
    ],
)
def test_tensors(folder, change, match):
    made_up.write(folder, values=made_up.tensors() | change)
    with pytest.raises(ValueError, match=match):
        pretrained.load(folder)


@pytest.mark.parametrize(("start", "keep"), [(b"", 0), (b"", 5), (b"", 40), (b"", -1), (b"\xff" * 60, None)])
def test_truncated_and_corrupted_weights(folder, start, keep):
    file = folder / "model.safetensors"
    file.write_bytes(start + file.read_bytes()[len(start) : keep])
    with pytest.raises(ValueError, match=r"model.safetensors' is truncated, corrupted or not a safetensors file"):
        pretrained.load(folder)


def test_dtype(folder):
    with pytest.raises(TypeError, match="`dtype` must be float32, float64 or bfloat16, got int32"):
        pretrained.load(folder, dtype="int32")
    with pytest.raises(TypeError, match="`dtype` must be float32, float64 or bfloat16, got 'wide'"):
        pretrained.load(folder, dtype="wide")


@pytest.mark.parametrize(("stored", "size", "asked"), [("float64", 1e300, None), ("float32", 3.4e38, "bfloat16")])
@pytest.mark.parametrize("name", [QUERY, "embeddings.word_embeddings.weight"])
def test_numbers_that_do_not_fit_the_dtype(folder, name, stored, size, asked):
    values = made_up.tensors(dtype=stored)
    values[name][0, 0] = -size
    made_up.write(folder, values=values)
    with pytest.raises(ValueError, match=f"tensor '{name}' must be finite in {asked or 'float32'}, at most 3.*: 3|1"):
        pretrained.load(folder, dtype=asked)


def test_text(folder):
    checkpoint = pretrained.load(folder)
    with pytest.raises(ValueError, match="`text` must have at most 10 tokens, one per position of the model, got 11"):
        checkpoint.encode("rank " * 9)
    with pytest.raises(TypeError, match="`text` must be a string that is not empty, got 3"):
        checkpoint.encode(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`text` must be a string that is not empty"):
        checkpoint.encode("  ")


def test_tokenizer_file(tmp_path):
    checkpoint = pretrained.load(made_up.write(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"encoding text needs '.*tokenizer.json', which does not exist"):
        checkpoint.encode("rank")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json' must be a tokenizer in the format of tokenizers"):
        checkpoint.encode("rank")


def put(tree, place, value):
    *path, last = place
    for name in path:
        tree = tree[name]
    tree[last] = value


@pytest.mark.parametrize(
    "call", [lambda model: model.encode("rank, a"), lambda model: pretrained.cut(model, "rank, a")]
)
@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        (("post_processor", "special_tokens"), {}, "must be a tokenizer whose parts fit together, .* encode '.*': no "),
        (("model", "unk_token"), "[X]", "must be a tokenizer whose parts fit together, .*: WordLevel error: Missing"),
        (("model", "vocab", "rank"), 2**31, "must give ids up to 2147483647, those of int32, got 2147483648"),
        (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": ""}, "format of tokenizers, got: Precompil"),
    ],
)
def test_a_tokenizer_that_contradicts_itself(folder, place, value, match, call):
    file = folder / "tokenizer.json"
    put(stated := json.loads(file.read_text()), place, value)
    file.write_text(json.dumps(stated))
    with pytest.raises(ValueError, match=rf"tokenizer.json' .*{match}"):
        call(pretrained.load(folder))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_encoding_is_no_wrong_file(folder, monkeypatch, error):
    class Tokenizer:
        def encode(self, text, **options):
            raise error

    monkeypatch.setattr(pretrained.Checkpoint, "tokenizer", Tokenizer())
    with pytest.raises(error):
        pretrained.load(folder).encode("rank")


@pytest.mark.parametrize(
    ("ids", "kinds", "error", "match"),
    [
        (np.arange(11), None, ValueError, "`token_ids` must hold 1 to 10 tokens, one per position, got 11"),
        (np.zeros(0, int), None, ValueError, "`token_ids` must hold 1 to 10 tokens, .* got 0"),
        (np.array([0, 20]), None, ValueError, r"`token_ids` must lie in 0 … 19, .* got 20"),
        (np.array([-1]), None, ValueError, r"`token_ids` must lie in 0 … 19, .* got -1"),
        (
            np.zeros(3),
            None,
            TypeError,
            r"`token_ids` must be an array of integers of shape \(token\), got float64\[3\]",
        ),
        (np.zeros((2, 3), int), None, ValueError, r"`token_ids` must be an array of integers of shape \(token\)"),
        ([1, 2], None, TypeError, r"`token_ids` must be an array of integers"),
        (np.arange(3), np.zeros(2, int), ValueError, "`token_types` must have one number for each of 3 tokens, got 2"),
        (np.arange(3), np.full(3, 2), ValueError, r"`token_types` must lie in 0 … 1"),
    ],
)
def test_token_ids(folder, ids, kinds, error, match):
    with pytest.raises(error, match=match):
        pretrained.load(folder).embed(ids, kinds)


@pytest.mark.parametrize("package", ["safetensors", "tokenizers"])
def test_packages_that_are_not_installed(folder, monkeypatch, package):
    checkpoint = pretrained.load(folder)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'rc_jax\[pretrained\]'"):
        checkpoint.encode("rank") if package == "tokenizers" else pretrained.load(folder)


def test_random_like(key):
    spec = StackSpec(attention=AttentionSpec(d_model=8), depth=2)
    with pytest.raises(TypeError, match="`key` must be one typed key"):
        pretrained.random_like(jnp.zeros(2, jnp.uint32), spec)
    with pytest.raises(TypeError, match="`like` must be a Checkpoint or a StackSpec, got 3"):
        pretrained.random_like(key, 3)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(ValueError, match="`std` must be > 0, got 0"):
        pretrained.random_like(key, spec, std=0)
    rates = pretrained.random_like(key, StackSpec(attention=AttentionSpec(d_model=8, weights="decay"), depth=2))
    assert (rates.attention.parts["decay"] == 1 - 2.0**-5).all()  # a kind's own parameters start as it says
    assert jax.tree.leaves(pretrained.random_like(key, spec))
