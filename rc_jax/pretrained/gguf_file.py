"""A GGUF file of the Llama family: its settings as config.json says them, its tensors as in published weights."""

import functools
import importlib
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rc_jax._numerics.text import printable
from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families.rope import read_rotary
from rc_jax.pretrained.tensor_source import FLOATS, Location, Stored, Tensors, check_names

# Architectures as files name them. Of the first alone the converter of llama.cpp reorders queries and keys.
REORDERED, ARCHITECTURES = "llama", ("llama", "qwen2", "qwen3")
# Settings by their names behind that of the architecture; those in the second group may be absent.
NEEDED = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
OPTIONAL = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
# Settings that say what is true of every model read here, or nothing about its arithmetic.
CHECKED = (
    *("rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.finetuned"),
    *("attention.value_length", "expert_count", "expert_used_count", "tensor_data_layout"),
)
TABLES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FREQUENCIES = "rope_freqs.weight"  # by which the angles of Llama 3 are divided
# Of Llama 3: rotations within so many tokens, below and above which it scales.
LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


# More than any published file has: 1 000 tensors, 60 keys, 1.3 million tokens, merges and numbers beside them. What is
# allowed takes some seconds and 1 GB on one core.
MOST_TENSORS, MOST_KEYS, MOST_ENTRIES = 100_000, 10_000, 2_000_000
_LENGTH = struct.Struct("=Q")


class Contents(NamedTuple):
    """What the header of a file says: `metadata` by key, and where each of `tensors` lies, by name."""

    metadata: dict[str, Any]
    tensors: dict[str, Any]


def read_contents(file: Path) -> Contents:
    """The header of a file, read again when its time or size is another one."""
    state = file.stat()
    return _contents(file, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=2)  # reading the header of a large vocabulary takes seconds
def _contents(file: Path, changed: int, size: int) -> Contents:
    try:
        gguf = importlib.import_module("gguf")
    except ImportError as error:
        raise ImportError("reading a GGUF file needs gguf: pip install 'rc_jax[pretrained]'") from error
    try:
        _check_counts(file)
        reader = _reader(gguf)(file)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
        _check_places(reader)
    except Exception as error:  # the reader raises whatever its arithmetic does on bytes that are none
        raise ValueError(
            f"'{file}' is truncated, corrupted or not a GGUF file: {printable(' '.join(f'{error}'.split()))}"
        ) from error
    check_names(file, (*metadata, *(tensor.name for tensor in reader.tensors)))
    return Contents(metadata, {tensor.name: tensor for tensor in reader.tensors})


def _check_counts(file: Path) -> None:
    """Refuse what would take minutes and gigabytes to read: the counts in the first bytes are looked at."""
    with file.open("rb") as opened:
        _, version, tensors, keys = struct.unpack("=IIQQ", opened.read(24))
    if not version & 0xFFFF:
        raise ValueError("it must have this machine's byte order, got the other one")
    if tensors > MOST_TENSORS or keys > MOST_KEYS:
        raise ValueError(f"it must have at most {MOST_TENSORS} tensors and {MOST_KEYS} keys, got {tensors} and {keys}")


def _check_places(reader: Any) -> None:
    """Refuse tensors that share bytes or leave some out: each starts where the one before it ends, once aligned."""
    place = reader.data_offset
    for tensor in sorted(reader.tensors, key=lambda tensor: (tensor.data_offset, tensor.n_bytes)):
        if tensor.data_offset != place:
            raise ValueError(f"tensor {tensor.name!r} must start at byte {place}, got {tensor.data_offset}")
        end = place + tensor.n_bytes
        place = end + -end % reader.alignment


@functools.cache
def _reader(gguf: Any) -> type:
    """The reader of gguf, with arrays as long as a vocabulary in a tenth of the time.

    Its own makes several NumPy arrays for every entry. Here numbers are one array, and strings are views of the bytes.
    """

    class Reader(gguf.GGUFReader):
        def _get_field_parts(self, orig_offs: int, raw_type: Any) -> tuple[int, list[Any], list[int], list[Any]]:
            if raw_type != gguf.GGUFValueType.ARRAY or self.byte_order != "I":
                return super()._get_field_parts(orig_offs, raw_type)
            head = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            kind, count, start = gguf.GGUFValueType(int(head[0][0])), int(head[1][0]), orig_offs + 12
            self.entries = getattr(self, "entries", 0) + count
            if self.entries > MOST_ENTRIES:
                raise ValueError(f"its lists must have at most {MOST_ENTRIES} entries together")
            if kind == gguf.GGUFValueType.ARRAY and count:
                raise ValueError("its lists must hold numbers or texts, got a list of lists")
            types = [gguf.GGUFValueType.ARRAY, kind][: 1 + (count > 0)]
            if (number := self.gguf_scalar_to_np.get(kind)) is not None:
                values = self._get(start, number, count)
                return 12 + values.nbytes, [*head, values], [2] if count else [], types
            if kind != gguf.GGUFValueType.STRING:
                return super()._get_field_parts(orig_offs, raw_type)
            # Each string is its length in eight bytes, then its bytes.
            strings, view = [], memoryview(self.data)
            for _ in range(count):
                first = start + 8
                start = first + _LENGTH.unpack_from(view, first - 8)[0]
                strings.append(view[first:start])
            return start - orig_offs, [*head, *strings], list(range(2, 2 + count)), types

    return Reader


def read_config(file: Path) -> Config:
    """The settings under the names of config.json."""
    # The settings that families read, by the names that they know.
    metadata, tensors = read_contents(file)
    whole = Config(file, metadata)
    family = whole.choice("general.architecture", ARCHITECTURES)
    own = {key.removeprefix(f"{family}."): value for key, value in metadata.items() if key.startswith(f"{family}.")}
    known = NEEDED | OPTIONAL
    config = whole.under({name: f"{family}.{key}" for key, name in known.items()})
    config.values.setdefault("vocab_size", len(whole.several("tokenizer.ggml.tokens", str)) or None)
    config.values.update(
        model_type=family,
        attention_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        tie_word_embeddings="output.weight" not in tensors,
    )
    # What is not among them must be known to change nothing.
    stated = Config(file, own, f"{family}.")
    for key in own:
        if key not in (*known, *CHECKED):
            raise stated.refuse(repr(key)[1:-1], "be absent: it is not read here", own[key])
    for key in NEEDED:
        if key not in own:
            raise stated.refuse(key, "be given", None)
    if (parts := whole.integer("split.count", 1, least=0)) > 1:
        raise ValueError(f"'{file}' must be the whole model, got one of {parts} files: merge them by llama-gguf-split")
    for name in ("expert_count", "expert_used_count"):
        stated.choice(name, (0,), 0)
    width = _head_width(config)
    for name in ("rope.dimension_count", "attention.value_length"):
        stated.choice(name, (width,), width)
    linear = stated.choice("rope.scaling.type", ("none", "linear"), "none") == "linear"
    if FREQUENCIES in tensors:
        _llama3(config, np.asarray(tensors[FREQUENCIES].data, np.float64).ravel(), width, linear=linear)
    elif linear:
        config.values["rope_scaling"] = {"rope_type": "linear", "factor": stated.positive("rope.scaling.factor")}
    return config


def _llama3(config: Config, table: np.ndarray, width: int, *, linear: bool) -> None:
    """Set the settings of Llama 3's stretched rotation, which the file stores as a table."""
    # The table is by what each frequency is divided; its largest entry is the factor of the slowest ones.
    if not linear and table.size == width // 2 and np.isfinite(factor := float(table.max())) and factor >= 1:
        plain = np.array(read_rotary(config).frequencies(width))
        config.values["rope_scaling"] = LLAMA3 | {"factor": factor}
        if np.allclose(table, plain / np.array(read_rotary(config).frequencies(width)), rtol=1e-6, atol=0):
            return
    raise ValueError(f"tensor '{FREQUENCIES}' must be the table of Llama 3's rotation in '{config.file}', got another")


def tensors_of(file: Path, config: Config) -> Tensors:
    """The tensors of a file whose settings are known, under the names of published weights."""
    left: dict[str, Location] = {}
    for name, tensor in read_contents(file).tensors.items():
        if name == FREQUENCIES:
            continue
        # The file has the dimensions innermost first. A quantised tensor is read as float32.
        shape, kind = tuple(int(size) for size in reversed(tensor.shape)), tensor.tensor_type.name
        kind = kind if kind in FLOATS or re.fullmatch(r"I\d+", kind) else "F32"
        published = _renamed(name, r"blk\.(\d+)\.(\w+)", "model.layers", TABLES, PARTS)
        left[published] = Location(name, file, shape, kind, functools.partial(_read, tensor, shape, file, config))
    tables, parts = ({published: own for own, published in names.items()} for names in (TABLES, PARTS))
    return Tensors(file, left, called=lambda name: _renamed(name, r"model\.layers\.(\d+)\.(.+)", "blk", tables, parts))


def _renamed(name: str, pattern: str, blocks: str, tables: dict[str, str], parts: dict[str, str]) -> str:
    """The other name of a tensor, of a table or of a part of a layer; one that is not known keeps its own."""
    stem, _, end = name.rpartition(".")
    block = re.fullmatch(pattern, stem)
    if block and block[2] in parts:
        return f"{blocks}.{block[1]}.{parts[block[2]]}.{end}"
    return f"{tables[stem]}.{end}" if stem in tables else name


def _read(tensor: Any, shape: tuple[int, ...], file: Path, config: Config) -> Stored:
    """The numbers of a tensor, dequantised, in the order of published weights."""
    name, kind = tensor.name, tensor.tensor_type
    try:
        values = np.asarray(importlib.import_module("gguf").dequantize(tensor.data, kind)).reshape(shape)
    except NotImplementedError as error:
        raise ValueError(f"tensor '{name}' must be of a type that gguf reads in '{file}', got {kind.name}") from error
    # Rotary positions rotate two features together. llama.cpp has them as neighbours, rows 2i and 2i + 1 of a head;
    # published weights have them as rows i and i + width/2.
    if config.get("model_type") == REORDERED and re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name):
        pairs = values.reshape(-1, _head_width(config) // 2, 2, *shape[1:])
        values = pairs.swapaxes(1, 2).reshape(shape)
    return values


def _head_width(config: Config) -> int:
    return config.integer("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads"))
