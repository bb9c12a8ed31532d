"""The tokenizer that the metadata of a GGUF file describes: byte-level BPE, split as its vocabulary was learned."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rc_jax._numerics.text import printable
from rc_jax.pretrained.config import Config

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PREFIX = "tokenizer.ggml."
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # of `token_type`
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# By `pre`: the patterns that divide a text, one after another.
SPLITS = {
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),  # every digit for itself first
    "llama-bpe": (LLAMA3,),
    "qwen2": (QWEN2,),
}
WHOLE = ("llama-bpe",)  # a piece that is a token is taken before any merge is tried, and a text starts with its token


def build_tokenizer(metadata: dict[str, Any], file: Path) -> "Tokenizer":
    """The tokenizer of that metadata."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    own = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
    stated = Config(file, own, PREFIX)
    stated.choice("model", ("gpt2",))
    split = stated.choice("pre", tuple(SPLITS))
    # The vocabulary, and the merges in the order in which they were learned.
    tokens, merges = stated.several("tokens", str), stated.several("merges", str)
    if len(kinds := stated.several("token_type", int) or [NORMAL] * len(tokens)) != len(tokens):
        raise stated.refuse("token_type", f"have one entry for each of {len(tokens)} tokens", len(kinds))
    ids = {token: index for index, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(
            models.BPE(ids, [tuple(merge.split(" ")) for merge in merges], ignore_merges=split in WHOLE)
        )
    except Exception as error:  # tokenizers raises nothing narrower
        said = printable(" ".join(f"{error}".split()))
        raise stated.refuse("merges", f"join two tokens each ({said})", merges[:1]) from error
    pieces = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[split]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Tokens that stand for themselves wherever they are written.
    for kind in (CONTROL, USER_DEFINED):
        made = [
            AddedToken(token, normalized=False, special=kind == CONTROL)
            for token, each in zip(tokens, kinds, strict=True)
            if each == kind
        ]
        (tokenizer.add_special_tokens if kind == CONTROL else tokenizer.add_tokens)(made)
    _frame(tokenizer, stated, tokens, begins=split in WHOLE)
    return tokenizer


def _frame(tokenizer: "Tokenizer", stated: Config, tokens: list[str], *, begins: bool) -> None:
    """The tokens that the file puts before a text and after it."""
    from tokenizers import processors

    around: list[list[str]] = []
    for name, default in (("bos", begins), ("eos", False)):
        wanted, index = stated.get(f"add_{name}_token", default), stated.get(f"{name}_token_id")
        if wanted and index not in range(len(tokens)):
            raise stated.refuse(f"{name}_token_id", "be that of a token", index)
        around.append([tokens[index]] if wanted else [])
    before, after = around
    if special := {*before, *after}:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], special_tokens=[(token, tokens.index(token)) for token in special]
        )
