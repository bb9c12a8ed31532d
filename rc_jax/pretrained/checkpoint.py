"""A published checkpoint: parameters, the stack they belong to, embeddings and tokenizer."""

import contextlib
import functools
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Integer

from rc_jax._numerics import arguments
from rc_jax._numerics.jax_names import canonical_dtype
from rc_jax._numerics.text import printable
from rc_jax.network import LayerParams, NormParams, StackSpec
from rc_jax.network.stack import NORMS, layer_norm
from rc_jax.pretrained import tensor_source
from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families import Embeddings, Layout, read_layout
from rc_jax.pretrained.gguf_file import read_config, read_contents, tensors_of
from rc_jax.pretrained.gguf_tokenizer import build_tokenizer
from rc_jax.pretrained.safetensors_files import read
from rc_jax.pretrained.tokenizer_file import tokenizer_text

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

TOKENIZER = "tokenizer.json"
TokenIds = Integer[Array | np.ndarray, " token"]
TokenTypes = Integer[Array | np.ndarray, " kind"]


def _check_dtype(name: str, value: Any) -> None:
    try:
        kind = jnp.dtype(value)
    except TypeError:
        raise TypeError(f"`{name}` must be float32, float64 or bfloat16, got {value!r}") from None
    if kind.name not in ("float32", "float64", "bfloat16"):
        raise TypeError(f"`{name}` must be float32, float64 or bfloat16, got {kind}")
    if canonical_dtype(kind) != kind:
        raise ValueError(f"`{name}` must be float32 or bfloat16 unless jax.enable_x64 is on, got {kind}")


class Checkpoint(NamedTuple):
    """The result of `load`; `params, spec, *_ = load(folder)` takes just the stack.

    Attributes:
        params: the layers, stacked: every leaf has a leading layer axis.
        spec: the stack; `dataclasses.replace(spec, skip=False, mlp=None)` switches parts off for the same `params`.
        embeddings: the tables that turn token ids into the first hidden state.
        config: the settings as published (config.json); those of a GGUF file under the same names.
        folder: where the checkpoint lies; of a GGUF file, the file.
        ignored: names of the stored tensors that hidden states do not depend on (pooler, task heads, position ids).
        final_norm: of the norm after the last layer, which `finish` applies; `None` where the family has none.
        most_tokens: the longest sequence.
        key_value_heads: number of heads whose keys and values differ; `params` repeats each for the queries that read
            it, so that everything that holds for a head holds for each of them.
        shared_layers: which stored layer each layer is: 0, 1, 2, … but in ALBERT, where `params` repeats them.
        padding: the token that has no position of its own, in RoBERTa; the positions of others start after its number.
        embedding_factor: by which `embed` multiplies the rows of the tables: √d_model in Gemma, else 1.
    """

    params: LayerParams
    spec: StackSpec
    embeddings: Embeddings
    config: dict[str, Any]
    folder: Path
    ignored: tuple[str, ...]
    final_norm: NormParams | None
    most_tokens: int
    key_value_heads: int
    shared_layers: tuple[int, ...]
    padding: int | None
    embedding_factor: float

    @property
    def tokenizer_file(self) -> Path:
        """The file that holds the tokenizer: tokenizer.json in the folder, or the GGUF file itself."""
        return self.folder if self.folder.suffix == tensor_source.GGUF else self.folder / TOKENIZER

    @property
    def tokenizer(self) -> "Tokenizer":
        """The `tokenizers.Tokenizer` of its file, read when first asked for; it neither truncates nor pads.

        Raises:
            FileNotFoundError: the folder has no tokenizer.json.
            ValueError: its parts do not fit together, or a GGUF file has another one than byte-level BPE.
            ImportError: the package tokenizers is not installed.
        """
        file = self.tokenizer_file
        state = file.stat() if file.is_file() else None
        return _tokenizer(file, None if state is None else (state.st_mtime_ns, state.st_size))

    @arguments.guard()
    def encode(self, text: str) -> Integer[Array, " token"]:
        """Token ids of one text, with the special tokens the model was trained with around it (BERT: [CLS] … [SEP]).

        Nothing is truncated silently, and nothing is padded, whatever tokenizer.json asks for.

        Args:
            text: the text.

        Raises:
            ValueError: `text` gives more tokens than the checkpoint has positions.
            FileNotFoundError, ValueError, ImportError: as `tokenizer`.

        Example:
            >>> from rc_jax import pretrained
            >>> checkpoint = pretrained.load(pretrained.packaged_checkpoint())
            >>> checkpoint.encode("Rank collapse.").tolist()
            [101, 4635, 7859, 1012, 102]
        """
        ids = encoding(self.tokenizer, self.tokenizer_file, text).ids
        if len(ids) > self.most_tokens:
            raise ValueError(
                f"`text` must have at most {self.most_tokens} tokens, one per position of the model, got {len(ids)}"
            )
        return jnp.asarray(ids, jnp.int32)

    @property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that `encode` puts before a text and after it.

        Raises:
            FileNotFoundError, ValueError, ImportError: as `tokenizer`.

        Example:
            >>> from rc_jax import pretrained
            >>> pretrained.load(pretrained.packaged_checkpoint()).frame
            ((101,), (102,))
        """
        encoded = encoding(self.tokenizer, self.tokenizer_file, "a")
        inside = [index for index, special in enumerate(encoded.special_tokens_mask) if not special]
        if not inside:
            raise ValueError(f"'{self.tokenizer_file}' must find a token in 'a', got ids {encoded.ids}")
        return tuple(encoded.ids[: inside[0]]), tuple(encoded.ids[inside[-1] + 1 :])

    @arguments.guard(token_ids=arguments.integer_array("token"), token_types=arguments.integer_array("token"))
    def embed(self, token_ids: TokenIds, token_types: TokenTypes | None = None) -> Float[Array, "token feature"]:
        """The first hidden state, one row per token: the sum of the rows of the family's tables, normed where it is.

        BERT, RoBERTa, DistilBERT and ALBERT: LayerNorm(word + position + token type), which ALBERT multiplies by a
        matrix; GPT-2: word + position; the families with rotary positions: word, in Gemma times √d_model.
        `network.apply(params, embed(token_ids), spec)` is the state after the last layer. Batches by `jax.vmap`.

        Args:
            token_ids: as from `encode`.
            token_types: 0 for the first sentence, 1 for the second, where the family has them; by default all 0.

        Raises:
            ValueError: no token, more tokens than positions, a number that the tables have no row for, or token types
                in a family without them.

        Source: Devlin et al. 2019, "BERT", section 3 and figure 2; Lan et al. 2020, "ALBERT", section 3.1.

        Example:
            >>> from rc_jax import network, pretrained
            >>> checkpoint = pretrained.load(pretrained.packaged_checkpoint())
            >>> x = checkpoint.embed(checkpoint.encode("Rank collapse."))
            >>> x.shape, network.apply(checkpoint.params, x, checkpoint.spec).shape
            ((5, 384), (5, 384))
        """
        tables, ids, count = self.embeddings, jnp.asarray(token_ids), token_ids.shape[0]
        if not 1 <= count <= self.most_tokens:
            raise ValueError(f"`token_ids` must hold 1 to {self.most_tokens} tokens, one per position, got {count}")
        _check_rows("token_ids", token_ids, tables.word.shape[0])
        x = tables.word[ids]
        if tables.token_type is not None:
            kinds = jnp.zeros(count, jnp.int32) if token_types is None else jnp.asarray(token_types)
            if kinds.shape[0] != count:
                raise ValueError(f"`token_types` must have one number for each of {count} tokens, got {kinds.shape[0]}")
            _check_rows("token_types", kinds, tables.token_type.shape[0])
            x = x + tables.token_type[kinds]
        elif token_types is not None:
            raise ValueError(f"`token_types` must be None: the family {self.config['model_type']} has none")
        if tables.position is not None:
            # Positions 0, 1, 2, …; with padding p, those after p, counted over the other tokens only.
            positions = jnp.arange(count)
            if self.padding is not None:
                counted = (ids != self.padding).astype(jnp.int32)
                positions = jnp.cumsum(counted) * counted + self.padding
            x = x + tables.position[positions]
        if self.embedding_factor != 1:
            x = x * jnp.asarray(self.embedding_factor, x.dtype)
        if tables.norm is not None:
            x = layer_norm(x, tables.norm, self.spec.norm_epsilon)
        if tables.projection is not None:
            x = jnp.matmul(x, tables.projection, precision=self.spec.attention.precision)
        return x if tables.projection_bias is None else x + tables.projection_bias[None]

    @arguments.guard()
    def finish(self, x: Float[Array, "token feature"]) -> Float[Array, "token feature"]:
        """The norm after the last layer, on the state that `network.apply` gives; `x` as it is where there is none.

        GPT-2 and GPT-NeoX have a LayerNorm there, the other families with rotary positions an RMSNorm.
        `network.hidden_states` are states before it. Batches by `jax.vmap`.

        Args:
            x: the last hidden state.

        Example:
            >>> import jax.numpy as jnp
            >>> from rc_jax import pretrained
            >>> checkpoint, x = pretrained.load(pretrained.packaged_checkpoint()), jnp.ones((2, 384))
            >>> bool((checkpoint.finish(x) == x).all())
            True
        """
        if x.shape[1] != self.spec.attention.d_model:
            raise ValueError(
                f"`x` must have d_model={self.spec.attention.d_model} features, got {arguments.describe(x)}"
            )
        if self.final_norm is None:
            return x
        return NORMS[self.spec.norm_kind](x, self.final_norm, self.spec.norm_epsilon)


@arguments.guard(folder=tensor_source.check_path, dtype=_check_dtype)
def load(folder: str | os.PathLike[str], *, dtype: DTypeLike | None = None) -> Checkpoint:
    """Read a published checkpoint: config.json, the weights and, when asked to encode, tokenizer.json; or a GGUF file.

    The families (`model_type` in config.json) are bert, albert, roberta, xlm-roberta, camembert, distilbert, gpt2,
    gpt_neox, and llama, mistral, qwen2, qwen3, olmo2, gemma2 and gemma3_text, with experts mixtral, qwen3_moe and
    olmoe. Of a model of images and text (`text_config`) the text part is read, if it is one of these. The weights
    are one file model.safetensors or, where there is none, the shards that model.safetensors.index.json names.
    `network.apply(params, embed(ids), spec)` is the state after the last layer, and `Checkpoint.finish` of it what the
    model hands out. The names may carry the prefix of a model with a head for a task or not. Every tensor must be one
    that the layout knows; what hidden states do not depend on (the pooler, the heads beside a prefix, stored position
    ids and masks) is left out, and `Checkpoint.ignored` names it. Nothing is executed: pickles are refused. The tensors
    are read one by one into their places: beside the parameters, no more than one layer is ever in memory.

    A GGUF file holds all of it; read are those of llama, qwen2 and qwen3 (`general.architecture`), tied embeddings or
    not. Quantised tensors become float32. It does not say how the model was drawn, so `random_like` uses its default.

    Args:
        folder: with the files, or a .gguf file; a folder without config.json may hold one of those.
        dtype: of the parameters: float32, bfloat16, or float64 (under `jax.enable_x64(True)`). By default as stored,
            the widest where tensors differ; float16 becomes float32.

    Returns:
        A `Checkpoint`, a tuple that starts with (params, spec, …).

    Raises:
        FileNotFoundError: no such folder or file, or no config.json or weights in the folder (a pickle does not do),
            or a shard that the index names is not there.
        ValueError: a file that cannot be parsed, is truncated or corrupted; a setting that this package cannot run
            (another `model_type`, activation, kind of positions, …); an index and shards that do not agree; a tensor
            that is missing, unexpected, of the wrong shape or dtype, or not finite. The message names the file and the
            setting or tensor.
        ImportError: the package safetensors, or for a GGUF file gguf, is not installed.

    Source: tensor names and arithmetic as in the transformers library's models of those names.

    Example:
        >>> from rc_jax import pretrained
        >>> params, spec, *_ = pretrained.load(pretrained.packaged_checkpoint())
        >>> spec.depth, spec.attention.heads, params.attention.query.shape
        (6, 12, (6, 12, 384, 32))
    """
    # Settings first: they say which tensors the files must hold, and of which shape.
    path = tensor_source.checkpoint_path(folder)
    config = _settings(path)
    layout = read_layout(config)
    packed = path.suffix == tensor_source.GGUF
    with contextlib.nullcontext(tensors_of(path, config)) if packed else tensor_source.open_tensors(path) as tensors:
        params, embeddings, final_norm = read(tensors, layout, dtype)
    return Checkpoint(
        params=params,
        spec=layout.spec,
        embeddings=embeddings,
        config=config.values,
        folder=path,
        ignored=tensors.ignored,
        final_norm=final_norm,
        most_tokens=layout.most_tokens,
        key_value_heads=layout.key_value_heads,
        shared_layers=layout.shared_layers,
        padding=layout.padding,
        embedding_factor=layout.embedding_factor,
    )


def encoding(tokenizer: "Tokenizer", file: Path, text: str, *, special: bool = True) -> "Encoding":
    """What a tokenizer makes of a text, with the special tokens around it or not; errors name its file."""
    with _naming(f"'{file}' must be a tokenizer whose parts fit together, but it cannot encode {text!r:.80}"):
        encoded = tokenizer.encode(text, add_special_tokens=special)
    if (largest := max(encoded.ids, default=0)) > (most := np.iinfo(np.int32).max):
        raise ValueError(f"'{file}' must give ids up to {most}, those of int32, got {largest}")
    return encoded


def stated_layout(folder: str | os.PathLike[str]) -> Layout:
    """What the settings of a checkpoint describe; nothing of its weights is read."""
    return read_layout(_settings(tensor_source.checkpoint_path(folder)))


def _settings(path: Path) -> Config:
    return read_config(path) if path.suffix == tensor_source.GGUF else Config.read(path)


def _check_rows(name: str, ids: Array | np.ndarray, rows: int) -> None:
    numbers = arguments.on_host(ids)
    if numbers is not None and not ((numbers >= 0) & (numbers < rows)).all():
        worst = numbers[(numbers < 0) | (numbers >= rows)][0]
        raise ValueError(f"`{name}` must lie in 0 … {rows - 1}, the rows of the checkpoint's table, got {worst}")


@contextlib.contextmanager
def _naming(expected: str) -> Generator[None, None, None]:
    """What the package tokenizers raises becomes a ValueError; a panic of its Rust code is no `Exception`."""
    try:
        yield
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"
        if not panic and (not isinstance(error, Exception) or isinstance(error, TypeError)):
            raise
        raise ValueError(f"{expected}: {printable(f'{error}')}") from error


@functools.lru_cache(maxsize=4)
def _tokenizer(file: Path, state: tuple[int, int] | None) -> "Tokenizer":
    """The tokenizer in a file; read again when the file's time or size, its `state`, is another one."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError("encoding text needs tokenizers: pip install 'rc_jax[pretrained]'") from error
    if state is None:
        raise FileNotFoundError(f"encoding text needs '{file}', which does not exist")
    if file.suffix == tensor_source.GGUF:
        return build_tokenizer(read_contents(file).metadata, file)
    with _naming(f"'{file}' must be a tokenizer in the format of tokenizers, got"):
        tokenizer = Tokenizer.from_str(tokenizer_text(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
