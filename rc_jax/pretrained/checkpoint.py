"""A published checkpoint as this package sees it: parameters, the stack they belong to, embeddings and tokenizer."""

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Integer

from rc_jax import _checks
from rc_jax.network import LayerParams, StackSpec
from rc_jax.network.stack import layer_norm
from rc_jax.pretrained import bert, files

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TokenIds = Integer[Array | np.ndarray, " token"]
TokenTypes = Integer[Array | np.ndarray, " kind"]


def _check_dtype(name: str, value: Any) -> None:
    try:
        kind = jnp.dtype(value)
    except TypeError:
        raise TypeError(f"`{name}` must be float32, float64 or bfloat16, got {value!r}") from None
    if kind.name not in ("float32", "float64", "bfloat16"):
        raise TypeError(f"`{name}` must be float32, float64 or bfloat16, got {kind}")
    if jax.dtypes.canonicalize_dtype(kind) != kind:
        raise ValueError(f"`{name}` must be float32 or bfloat16 unless jax.enable_x64 is on, got {kind}")


class Checkpoint(NamedTuple):
    """What `load` returns; `params, spec, *_ = load(folder)` takes just the stack.

    Attributes:
        params: the layers, stacked: every leaf has a leading layer axis.
        spec: the stack; `dataclasses.replace(spec, skip=False, mlp=None)` switches parts off for the same `params`.
        embeddings: the tables that turn token ids into the first hidden state.
        config: the settings as published (config.json).
        folder: where the checkpoint lies.
        ignored: names of the stored tensors that hidden states do not depend on (pooler, task heads, position ids).
    """

    params: LayerParams
    spec: StackSpec
    embeddings: bert.Embeddings
    config: dict[str, Any]
    folder: Path
    ignored: tuple[str, ...] = ()

    @property
    def tokenizer(self) -> "Tokenizer":
        """The `tokenizers.Tokenizer` of tokenizer.json, read when first asked for; it neither cuts nor pads.

        Raises:
            FileNotFoundError: the folder has no tokenizer.json.
            ValueError: the file is not a tokenizer.
            ImportError: the package tokenizers is not installed.
        """
        return _tokenizer(self.folder / "tokenizer.json")

    @_checks.guard(text=_checks.text)
    def encode(self, text: str) -> Integer[Array, " token"]:
        """Token ids of one text, with the special tokens the model was trained with around it ([CLS] … [SEP]).

        Nothing is cut off silently, and nothing is padded, whatever tokenizer.json asks for.

        Args:
            text: the text.

        Raises:
            TypeError: `text` is not a string.
            ValueError: `text` is empty, or gives more tokens than the checkpoint has positions.
            FileNotFoundError: the folder has no tokenizer.json.
            ImportError: the package tokenizers is not installed.

        Example:
            >>> from rc_jax import pretrained
            >>> checkpoint = pretrained.load(pretrained.packaged_checkpoint())
            >>> checkpoint.encode("Rank collapse.").tolist()
            [101, 4635, 7859, 1012, 102]
        """
        ids = self.tokenizer.encode(text).ids
        most = self.embeddings.position.shape[0]
        if len(ids) > most:
            raise ValueError(f"`text` must have at most {most} tokens, one per position of the model, got {len(ids)}")
        return jnp.asarray(ids, jnp.int32)

    @_checks.guard(token_ids=_checks.integer_array("token"), token_types=_checks.integer_array("token"))
    def embed(self, token_ids: TokenIds, token_types: TokenTypes | None = None) -> Float[Array, "token feature"]:
        """The first hidden state: LayerNorm(word + position + token type), one row per token.

        `network.apply(params, embed(token_ids), spec)` is the model's last hidden state. Batches by `jax.vmap`.

        Args:
            token_ids: as from `encode`.
            token_types: 0 for the first sentence, 1 for the second; by default all 0.

        Raises:
            TypeError: an argument that is not an array of integers.
            ValueError: no token, more tokens than positions, or a number that the tables have no row for.

        Source: Devlin et al. 2019, "BERT", section 3 and figure 2.

        Example:
            >>> from rc_jax import network, pretrained
            >>> checkpoint = pretrained.load(pretrained.packaged_checkpoint())
            >>> x = checkpoint.embed(checkpoint.encode("Rank collapse."))
            >>> x.shape, network.apply(checkpoint.params, x, checkpoint.spec).shape
            ((5, 384), (5, 384))
        """
        word, position, kind, norm = self.embeddings
        count = token_ids.shape[0]
        if not 1 <= count <= position.shape[0]:
            raise ValueError(f"`token_ids` must hold 1 to {position.shape[0]} tokens, one per position, got {count}")
        _check_rows("token_ids", token_ids, word.shape[0])
        kinds = jnp.zeros(count, jnp.int32) if token_types is None else jnp.asarray(token_types)
        if kinds.shape[0] != count:
            raise ValueError(f"`token_types` must have one number for each of {count} tokens, got {kinds.shape[0]}")
        _check_rows("token_types", kinds, kind.shape[0])
        x = word[jnp.asarray(token_ids)] + position[:count] + kind[kinds]
        return layer_norm(x, norm, self.spec.norm_epsilon)


@_checks.guard(folder=files.check_path, dtype=_check_dtype)
def load(folder: str | os.PathLike[str], *, dtype: DTypeLike | None = None) -> Checkpoint:
    """Read a published BERT checkpoint: config.json, model.safetensors and, when asked to encode, tokenizer.json.

    The stack is the published one: post-norm blocks X ← LN(X + SA(X)), X ← LN(X + MLP(X)), biases everywhere, so that
    `network.apply(params, embed(ids), spec)` is the model's last hidden state. The names may carry the prefix "bert."
    or not. Every other tensor must be one that the layout knows; the pooler, the heads for tasks (`cls.`,
    `classifier.`, `qa_outputs.` beside a prefix) and the position ids 0, 1, 2, … are left out, as hidden states do not
    depend on them, and `Checkpoint.ignored` names them. Nothing is executed: pickles are refused.

    Args:
        folder: with the three files.
        dtype: of the parameters: float32, bfloat16, or float64 (under `jax.enable_x64(True)`). By default as stored;
            float16 becomes float32.

    Returns:
        A `Checkpoint`, a tuple that starts with (params, spec, …).

    Raises:
        FileNotFoundError: no such folder, or no config.json or model.safetensors in it (a pickle does not do).
        TypeError: `folder` is not a path.
        ValueError: a file that cannot be parsed, is truncated or corrupted; a setting that this package cannot run
            (another `model_type`, activation, kind of positions, a decoder); a tensor that is missing, unexpected,
            of the wrong shape or dtype, or not finite. The message names the file and the setting or tensor.
        ImportError: the package safetensors is not installed.

    Source: Devlin et al. 2019, "BERT"; tensor names as in the transformers library's BertModel.

    Example:
        >>> from rc_jax import pretrained
        >>> params, spec, *_ = pretrained.load(pretrained.packaged_checkpoint())
        >>> spec.depth, spec.attention.heads, params.attention.query.shape
        (6, 12, (6, 12, 384, 32))
    """
    path = files.checkpoint_folder(folder)
    config = files.Config(path)
    config.choice("model_type", ("bert",))
    spec = bert.read_spec(config)
    tensors = files.Tensors(path)
    layers, embeddings = bert.read_tensors(tensors, config, spec)
    kind = jnp.dtype(embeddings.word.dtype if dtype is None else dtype)
    if dtype is None and kind.name not in ("bfloat16", "float32"):
        kind = jax.dtypes.canonicalize_dtype(jnp.float64 if kind.name == "float64" else jnp.float32)
    params = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves).astype(kind)), *layers)
    tables = jax.tree.map(lambda leaf: jnp.asarray(leaf.astype(kind)), embeddings)
    return Checkpoint(params, spec, tables, config.values, path, tensors.ignored)


def _check_rows(name: str, ids: Array | np.ndarray, rows: int) -> None:
    numbers = _checks.concrete(ids)
    if numbers is not None and not ((numbers >= 0) & (numbers < rows)).all():
        worst = numbers[(numbers < 0) | (numbers >= rows)][0]
        raise ValueError(f"`{name}` must lie in 0 … {rows - 1}, the rows of the checkpoint's table, got {worst}")


@functools.lru_cache(maxsize=4)
def _tokenizer(file: Path) -> "Tokenizer":
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError("encoding text needs tokenizers: pip install 'rc_jax[pretrained]'") from error
    if not file.is_file():
        raise FileNotFoundError(f"encoding text needs '{file}', which does not exist")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(f"'{file}' must be a tokenizer in the format of tokenizers, got: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
