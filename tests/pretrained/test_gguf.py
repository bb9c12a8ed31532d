"""GGUF files: every number in its place, whatever its type; hidden states and tokens as in transformers; errors."""

import struct
import sys
import tracemalloc

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from rc_jax import pretrained
from rc_jax.attention import Rotary
from rc_jax.pretrained import gguf_file
from tests.pretrained import made_up_gguf as made
from tests.pretrained.made_up import states

IDS = np.array([5, 9, 1, 2, 28, 7, 7, 3, 1, 1, 11, 0, 4, 4, 17, 29, 21, 8, 13, 6])
HEADS = {"query": ("attn_q", made.HEADS), "key": ("attn_k", made.KEY_HEADS), "value": ("attn_v", made.KEY_HEADS)}


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1"])
def test_every_number_goes_to_its_place(tmp_path, kind):
    stored = made.published()
    checkpoint = pretrained.load(made.write(tmp_path / "a.gguf", stored, kind=kind))
    kept = {
        name: made.dequantise(made.quantise(values, kind) if kind != "F32" else values, kind, values.shape)
        if values.ndim == 2
        else values
        for name, values in stored.items()
    }
    assert (
        max(np.abs(kept[name] - stored[name]).max() for name in stored)
        < {"F32": 1e-9, "Q8_0": 0.01, "Q4_1": 0.07}[kind]
    )
    np.testing.assert_array_equal(checkpoint.embeddings.word, kept["token_embd.weight"])
    np.testing.assert_array_equal(checkpoint.final_norm.scale, kept["output_norm.weight"])
    for layer in range(made.DEPTH):
        at = f"blk.{layer}."
        for role, (name, heads) in HEADS.items():
            matrices = kept[f"{at}{name}.weight"].reshape(heads, made.WIDTH, made.D).repeat(made.HEADS // heads, axis=0)
            if role != "value":  # features i and i + width/2 are rotated together, here as neighbours
                matrices = matrices[:, [0, 4, 1, 5, 2, 6, 3, 7]]
            np.testing.assert_array_equal(
                getattr(checkpoint.params.attention, role)[layer], matrices.transpose(0, 2, 1)
            )
        output = checkpoint.params.attention.output[layer].reshape(-1, made.D)
        np.testing.assert_array_equal(output, kept[f"{at}attn_output.weight"].T)
        for part, name in (("weight_gate", "ffn_gate"), ("weight_in", "ffn_up"), ("weight_out", "ffn_down")):
            np.testing.assert_array_equal(getattr(checkpoint.params.mlp, part)[layer], kept[f"{at}{name}.weight"].T)
        np.testing.assert_array_equal(checkpoint.params.attention_norm.scale[layer], kept[f"{at}attn_norm.weight"])
        np.testing.assert_array_equal(checkpoint.params.mlp_norm.scale[layer], kept[f"{at}ffn_norm.weight"])


def test_settings_are_those_of_config_json(tmp_path):
    made.write(tmp_path / "a.gguf", made.published(tied=False))
    checkpoint = pretrained.load(tmp_path)  # a folder with one such file
    layer = checkpoint.spec.attention
    assert (checkpoint.folder, checkpoint.ignored, checkpoint.most_tokens) == (
        tmp_path / "a.gguf",
        ("output.weight",),
        64,
    )
    assert (layer.d_model, layer.heads, layer.head_width, checkpoint.key_value_heads) == (32, 4, 8, 2)
    assert (checkpoint.spec.depth, checkpoint.spec.mlp.width, layer.causal) == (2, 64, True)
    assert (layer.rotary, checkpoint.spec.norm_epsilon) == (Rotary(base=500.0), pytest.approx(1e-5))
    assert checkpoint.config["tie_word_embeddings"] is False
    assert pretrained.load(tmp_path, dtype="bfloat16").embeddings.word.dtype == "bfloat16"


def test_the_header_is_what_the_library_itself_reads(tmp_path):
    """Arrays of every kind, which are read here by another way; those of text with letters of several bytes."""
    arrays = {
        "words": ["", "a", "東京", "l'été"],
        "wide": [-(2**31), 7],
        "narrow": [0.5, -1.25],
        "flags": [True, False, True],
    }
    file = made.write(tmp_path / "a.gguf", settings=made.SETTINGS | arrays)
    reader, contents = gguf.GGUFReader(file), gguf_file.read_contents(file)
    wanted = {key: field.contents() for key, field in reader.fields.items()}
    assert list(contents.metadata.items()) == list(wanted.items()) and wanted["llama.words"] == arrays["words"]
    assert [each.data_offset for each in contents.tensors.values()] == [each.data_offset for each in reader.tensors]


def llama3_table(base, width, factor, low, high, trained):
    """By what Llama 3 divides frequencies: long waves by the factor, short ones by nothing, between them smoothly."""
    table = []
    for wave in 2 * np.pi * base ** (np.arange(0, width, 2) / width):
        share = np.clip((trained / wave - low) / (high - low), 0, 1)
        table.append(1 / ((1 - share) / factor + share))
    return np.array(table, np.float32)


def test_stretched_rotations(tmp_path):
    scaled = made.SETTINGS | {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    checkpoint = pretrained.load(made.write(tmp_path / "linear.gguf", settings=scaled))
    assert checkpoint.spec.attention.rotary == Rotary(base=500.0, scaling="linear", factor=4.0)
    table = llama3_table(500_000.0, 8, 4.0, 1.0, 4.0, 8192)
    assert table[0] == 1 < table[2] < table[3] == 4
    slow = made.SETTINGS | {"rope.freq_base": 500_000.0}
    checkpoint = pretrained.load(made.write(tmp_path / "a.gguf", made.published() | {"rope_freqs.weight": table}, slow))
    wanted = Rotary(base=500_000.0, scaling="llama3", factor=4.0, original_tokens=8192)
    assert checkpoint.spec.attention.rotary == wanted
    table[2] *= 1.001
    with pytest.raises(
        ValueError, match=r"tensor 'rope_freqs.weight' must be the table of Llama 3's rotation in '.*b.gguf'"
    ):
        pretrained.load(made.write(tmp_path / "b.gguf", made.published() | {"rope_freqs.weight": table}, slow))


def transformers_model(file, **settings):
    """The model that the transformers library reads from a file, by the function that its own models are read by."""
    import torch
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    left = model.load_state_dict(tensors, strict=False)
    assert not left.unexpected_keys and set(left.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


@pytest.mark.torch
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_transformers_reads_the_same_model(tmp_path, architecture):
    torch = pytest.importorskip("torch")
    weights = made.published(biased=architecture == "qwen2")
    for part in ("attn_output", "ffn_gate", "ffn_up", "ffn_down"):  # which have no biases there
        weights = {name: values for name, values in weights.items() if not name.endswith(f"{part}.bias")}
    if architecture == "qwen3":
        gains = np.random.default_rng(3).uniform(0.5, 2, size=(made.DEPTH, 2, made.WIDTH)).astype(np.float32)
        weights |= {
            f"blk.{at}.attn_{q}_norm.weight": gains[at, i] for at in range(made.DEPTH) for i, q in enumerate("qk")
        }
    settings = made.SETTINGS | {"attention.key_length": made.WIDTH, "attention.value_length": made.WIDTH}
    file = made.write(tmp_path / "a.gguf", weights, settings, kind="Q4_1", architecture=architecture)
    checkpoint = pretrained.load(file)
    with torch.no_grad():
        own = {"head_dim": made.WIDTH} if architecture == "qwen3" else {}  # which transformers leaves at 128
        out = transformers_model(file, **own)(torch.tensor(IDS)[None], output_hidden_states=True)
    ours = states(checkpoint, IDS)
    np.testing.assert_allclose(ours, [state[0] for state in out.hidden_states], rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours[-1] @ checkpoint.embeddings.word.T, out.logits[0], rtol=0, atol=1e-5)


TEXTS = ("rank  col Rank's\n\n3 x", "l'été 2021: 12345  67", "  <end>rank<start> \n", "東京, O(n²)? it'LL\r\n\r\n x")


@pytest.mark.torch
@pytest.mark.parametrize("split", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_tokens_are_those_of_transformers(tmp_path, split):
    transformers = pytest.importorskip("transformers")
    file = made.write(tmp_path / "a.gguf", tokenizer=made.TOKENIZER | {"pre": split, "add_bos_token": False})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    if split == "smollm":  # which transformers divides as GPT-2 does; the published tokenizer sets digits apart first
        digits, rest = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])
    checkpoint = pretrained.load(file)
    for text in TEXTS:
        assert checkpoint.encode(text).tolist() == theirs(text)["input_ids"]
        assert checkpoint.tokenizer.decode(checkpoint.encode(text).tolist(), skip_special_tokens=False) == text


def test_tokens_around_a_text(tmp_path):
    frames = []
    for index, more in enumerate(({}, {"add_bos_token": True, "add_eos_token": True}, {"pre": "llama-bpe"})):
        file = made.write(tmp_path / f"{index}.gguf", tokenizer=made.TOKENIZER | more)
        frames.append(pretrained.load(file).frame)
    assert frames == [((), ()), ((0,), (1,)), ((0,), ())]
    windows = pretrained.cut(pretrained.load(file), "rank col rank", tokens=3)
    assert windows.ids[0].tolist() == [0, *(made.TOKENS.index(token) for token in ("rank", "Ġc"))]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"block_count": None}, "`llama.block_count` must be given in '.*a.gguf', got None"),
        ({"attention.head_count": 0}, "`llama.attention.head_count` must be an integer >= 1 in '.*a.gguf', got 0"),
        ({"attention.head_count_kv": [2, 1]}, r"`llama.attention.head_count_kv` must be an integer .* got \[2, 1\]"),
        ({"attention.head_count_kv": 3}, "`llama.attention.head_count_kv` must divide llama.attention.head_count=4"),
        ({"rope.dimension_count": 4}, "`llama.rope.dimension_count` must be one of 8 in '.*a.gguf', got 4"),
        ({"rope.scaling.type": "yarn"}, "`llama.rope.scaling.type` must be one of 'none', 'linear' .* got 'yarn'"),
        ({"expert_count": 8}, "`llama.expert_count` must be one of 0 in '.*a.gguf', got 8"),
        ({"attention.sliding_window": 4}, "`llama.attention.sliding_window` must be absent: it is not read here"),
        ({"a\nb": 1}, r"names must be printable in '.*a.gguf', got 'llama.a\\nb'"),
        ({"split.count": 2}, "'.*a.gguf' must be the whole model, got one of 2 files: merge them by llama-gguf-split"),
        ({"split.count": "2"}, "`split.count` must be an integer >= 0 in '.*a.gguf', got '2'"),
        ({"block_count": 3}, "tensor 'blk.2.ffn_gate.weight' is missing in '.*a.gguf'"),
        ({"embedding_length": 64, "rope.dimension_count": 16}, r"'token_embd.weight' must have shape \(\d+, 64\) in"),
    ],
)
def test_settings_that_are_refused(tmp_path, settings, match):
    given = {name: value for name, value in (made.SETTINGS | settings).items() if value is not None}
    with pytest.raises(ValueError, match=match):
        pretrained.load(made.write(tmp_path / "a.gguf", settings=given))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"blk.1.ffn_up.weight": None}, "tensor 'blk.1.ffn_up.weight' is missing in '.*a.gguf'"),
        ({"blk.1.ffn_up_exps.weight": np.ones(3, "f4")}, "unexpected tensor 'blk.1.ffn_up_exps.weight' in '.*a.gguf'"),
        ({"a\nb": np.ones(3, "f4")}, r"names must be printable in '.*a.gguf', got 'a\\nb'"),
        ({"output_norm.weight": np.ones(3, "i4")}, r"tensor 'output_norm.weight' must have shape \(32,\)"),
        ({"output_norm.weight": np.ones(32, "i4")}, "'output_norm.weight' must hold floating-point .* got I32"),
        ({"output_norm.weight": np.full(32, np.nan, "f4")}, "tensor 'output_norm.weight' must be finite in"),
    ],
)
def test_tensors_that_are_refused(tmp_path, change, match):
    weights = {name: value for name, value in (made.published() | change).items() if value is not None}
    with pytest.raises(ValueError, match=match):
        pretrained.load(made.write(tmp_path / "a.gguf", weights))


def test_another_architecture_and_no_library(tmp_path, monkeypatch):
    file = made.write(tmp_path / "a.gguf", architecture="gemma2")
    with pytest.raises(ValueError, match=r"`general.architecture` must be one of 'llama', .* got 'gemma2'"):
        pretrained.load(file)
    made.write(tmp_path / "b.gguf")
    with pytest.raises(ValueError, match=r"`folder` must be one of the 2 .gguf files in '.*', got their folder"):
        pretrained.load(tmp_path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"reading a GGUF file needs gguf: pip install 'rc_jax\[pretrained\]'"):
        pretrained.load(tmp_path / "b.gguf")


def test_a_file_cut_off_anywhere_is_one_error(tmp_path):
    whole = made.write(tmp_path / "a.gguf").read_bytes()
    for keep in [0, 3, *range(4, len(whole), len(whole) // 40), len(whole) - 1]:
        (cut := tmp_path / f"{keep}.gguf").write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=rf"{keep}.gguf' is truncated, corrupted or not a GGUF file: ."):
            pretrained.load(cut)


def header(tensors, keys, rest=b"", version=3):
    return struct.pack("<4sIQQ", b"GGUF", version, tensors, keys) + rest


STRINGS = struct.pack("<Q1sIIQ", 1, b"a", 9, 8, 5_000_000) + bytes(8 * 5_000_000)  # a list of empty texts
NUMBERS = struct.pack("<Q1sIIQ", 1, b"a", 9, 0, 5_000_000) + bytes(5_000_000)  # a list of bytes
LISTS = struct.pack("<Q1sIIQ", 1, b"a", 9, 9, 80_000) + 80_000 * struct.pack("<IQ", 4, 0)  # of empty lists


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (header(0, 1_000_000), "at most 100000 tensors and 10000 keys, got 0 and 1000000"),
        (header(10**9, 1), "at most 100000 tensors and 10000 keys, got 1000000000 and 1"),
        (header(0, 1, STRINGS), "lists must have at most 2000000 entries together"),
        (header(0, 1, NUMBERS), "lists must have at most 2000000 entries together"),
        (header(0, 1, LISTS), "lists must hold numbers or texts, got a list of lists"),
        (header(0, 1, version=3 << 24), "must have this machine's byte order"),
        (b"GGUF", "truncated, corrupted or not a GGUF file"),
    ],
    ids=["keys", "tensors", "texts", "numbers", "lists", "order", "short"],
)
def test_counts_are_looked_at_before_anything_is_read(tmp_path, content, match):
    (tmp_path / "a.gguf").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=match):
            pretrained.load(tmp_path / "a.gguf")
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_no_name_in_a_file_acts_on_a_terminal(tmp_path):
    escape = "\x1b]0;pwned\x07"
    weights = made.published() | {f"{escape}a": np.zeros(2, np.float32)}
    merges = made.TOKENIZER | {"merges": [f"{escape} {escape}"]}
    named = made.write(tmp_path / "name.gguf", weights)
    merged = pretrained.load(made.write(tmp_path / "merge.gguf", tokenizer=merges))
    for call in (lambda: pretrained.load(named), lambda: merged.encode("rank")):
        with pytest.raises(ValueError) as caught:
            call()
        assert f"{caught.value}".isprintable()


def test_a_wrong_place_or_type_of_a_tensor(tmp_path):
    entry, whole = gguf.GGUFReader(file := made.write(tmp_path / "a.gguf")).tensors[1].field, file.read_bytes()
    end = entry.offset + sum(part.nbytes for part in entry.parts)  # last there are the type and the place
    for at in (end - 8, end - 12):  # the tensor starts one byte later, or float32 becomes float16
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match=r"a.gguf' is truncated, corrupted .* tensor '.*' must start at byte \d+"):
            pretrained.load(file)


def test_names_with_a_line_break_are_told_in_one_line(tmp_path):
    names = ("a\nbc", "a\nbd")
    whole = made.write(tmp_path / "a.gguf", made.published() | dict.fromkeys(names, np.ones(8, "f4"))).read_bytes()
    (tmp_path / "a.gguf").write_bytes(whole.replace(b"a\nbd", b"a\nbc"))  # one name twice
    with pytest.raises(ValueError, match=r"a.gguf' is truncated, corrupted .*: .* with name a bc$"):
        pretrained.load(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"model": "llama"}, "`tokenizer.ggml.model` must be one of 'gpt2' in '.*a.gguf', got 'llama'"),
        ({"pre": "tekken"}, "`tokenizer.ggml.pre` must be one of 'gpt-2', 'smollm', .* in '.*a.gguf', got 'tekken'"),
        ({"token_type": [1, 1]}, r"`tokenizer.ggml.token_type` must have one entry for each of \d+ tokens .*, got 2"),
        ({"token_type": 5}, "`tokenizer.ggml.token_type` must be a list of entries of type int in '.*a.gguf', got 5"),
        (
            {"merges": ["r zz"]},
            r"`tokenizer.ggml.merges` must join two tokens each \(.*\) in '.*a.gguf', got \['r zz'\]",
        ),
        (
            {"add_eos_token": True, "eos_token_id": 999},
            "`tokenizer.ggml.eos_token_id` must be that of a token in .*, got 999",
        ),
    ],
)
def test_tokenizers_that_are_refused_and_models_that_still_run(tmp_path, settings, match):
    checkpoint = pretrained.load(made.write(tmp_path / "a.gguf", tokenizer=made.TOKENIZER | settings))
    with pytest.raises(ValueError, match=match):
        checkpoint.encode("rank")
    assert checkpoint.embed(IDS).shape == (20, made.D)
