"""Docstrings as texts: always the same, inside the special tokens of whatever tokenizer the checkpoint has."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from experiments.lib import sentences
from experiments.lib.figure import Unavailable
from rc_jax import pretrained

VOCABULARY = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}


def model(frame, most_tokens=64):
    """A checkpoint as far as texts are concerned: every word but "a" is unknown."""
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if frame != "$A":
        special = [(word, VOCABULARY[word]) for word in ("<s>", "</s>")]
        tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=special)

    class Model:
        folder, tokenizer_file = Path("made/up"), Path("made/up/tokenizer.json")
        frame = property(pretrained.Checkpoint.frame.fget)

    stand_in = Model()
    stand_in.tokenizer, stand_in.most_tokens = tokenizer, most_tokens
    return stand_in


@pytest.mark.slow
def test_docstrings_are_many_and_always_the_same():
    texts = sentences.docstrings()
    sentences.docstrings.cache_clear()
    assert texts == sentences.docstrings()
    assert len(texts) > 1000 and all(text.strip() for text in texts)


@pytest.mark.parametrize(
    ("frame", "before", "after"), [("$A", [], []), ("<s> $A", [1], []), ("<s> $A </s> </s>", [1], [2, 2])]
)
@pytest.mark.parametrize("spread", [False, True])
def test_texts_lie_inside_the_special_tokens(monkeypatch, frame, before, after, spread):
    texts = ("x a x a x a x a", "x", "a a a a a a a", "x x a a a a x a", "x x x x x x x")
    monkeypatch.setattr(sentences, "docstrings", lambda: texts)
    ids = sentences.token_ids(model(frame), 2, 7, spread=spread)
    inside = 7 - len(before) - len(after)
    wanted = [[0, 3, 0, 3, 0, 3, 0], [0, 0, 3, 3, 3, 3, 0] if spread else [3] * 7]
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, [[*before, *text[:inside], *after] for text in wanted])


def test_what_cannot_be_had_is_unavailable_and_says_why(monkeypatch):
    monkeypatch.setattr(sentences, "docstrings", lambda: ("too short",))
    bare = model("$A")
    with pytest.raises(Unavailable, match="only 0 docstrings of 5 tokens"):
        sentences.token_ids(model("<s> $A </s>"), 1, 7)
    with pytest.raises(Unavailable, match="up takes at most 64 tokens, 65 wanted"):
        sentences.token_ids(bare, 1, 65)
    with pytest.raises(Unavailable, match="2 tokens leave no space between the special tokens of up"):
        sentences.token_ids(model("<s> $A </s>"), 1, 2)


def test_without_a_tokenizer_it_says_so(tmp_path, monkeypatch):
    class Model:
        folder, most_tokens = tmp_path, None
        frame = property(lambda self: self.tokenizer.encode("a"))
        tokenizer = property(pretrained.Checkpoint.tokenizer.fget)
        tokenizer_file = property(pretrained.Checkpoint.tokenizer_file.fget)

    with pytest.raises(Unavailable, match=r"no text for .*tokenizer.json', which does not exist"):
        sentences.token_ids(Model(), 1, 7)  # type: ignore[arg-type]
