"""A text tokenised into windows: every token once, or twice where said, between the model's own."""

import json

import numpy as np
import pytest

from rc_jax import pretrained
from tests.pretrained import made_up


@pytest.fixture
def checkpoint(tmp_path):
    return pretrained.load(made_up.write(tmp_path / "made", tokenizer=True))


def test_a_short_text_is_one_window(checkpoint):
    windows = pretrained.cut(checkpoint, "rank collapse attention")
    assert windows.ids.tolist() == [[2, 4, 5, 6, 3]]
    assert windows[1:] == (3, 2, 0)
    assert windows.ids.tolist() == [checkpoint.encode("rank collapse attention").tolist()]


def test_windows_are_full_and_the_last_is_moved_back(checkpoint):
    text = "rank collapse attention rank rank collapse collapse"
    windows = pretrained.cut(checkpoint, text, tokens=5)
    assert windows.ids.tolist() == [[2, 4, 5, 6, 3], [2, 4, 4, 5, 3], [2, 4, 5, 5, 3]]
    assert windows[1:] == (7, 2, 2)
    even = pretrained.cut(checkpoint, f"{text} rank rank", tokens=5)
    assert (even.ids.shape, even.overlap) == ((3, 5), 0)
    assert even.ids[:, 1:-1].ravel().tolist() == [4, 5, 6, 4, 4, 5, 5, 4, 4]


def test_no_window_is_longer_than_the_model_takes(checkpoint):
    windows = pretrained.cut(checkpoint, "rank " * 100, tokens=1000)
    assert windows.ids.shape == (13, 10)
    assert windows.overlap == 4
    assert pretrained.cut(checkpoint, "rank " * 100, limit=2)[0].shape == (2, 10)
    assert pretrained.cut(checkpoint, "rank " * 100, limit=2).overlap == 0
    long = checkpoint._replace(most_tokens=1000)
    assert pretrained.cut(long, "rank " * 500).ids.shape == (4, 128)
    assert np.all(pretrained.cut(long, "rank " * 500, tokens=400).ids[:, [0, -1]] == [2, 3])


@pytest.mark.usefixtures("as_installed")
def test_bad_input(checkpoint):
    for arguments, error, message in (
        ({"text": 3}, TypeError, "`text` must be a string"),
        ({"text": " \n"}, ValueError, "`text` must be a string that is not empty"),
        ({"tokens": 2}, ValueError, "`tokens` must be at least 3: 2 are the model's own, got 2"),
        ({"tokens": 2.5}, TypeError, "`tokens` must be an integer >= 2"),
        ({"limit": 0}, ValueError, "`limit` must be an integer >= 1, got 0"),
    ):
        with pytest.raises(error, match=message):
            pretrained.cut(checkpoint, **{"text": "rank collapse", **arguments})


def test_an_added_token_without_a_row_is_refused_at_once(tmp_path):
    folder = made_up.write(tmp_path / "made", tokenizer=True)
    told = json.loads((folder / "tokenizer.json").read_text())
    told["model"]["vocab"]["added"] = 40
    (folder / "tokenizer.json").write_text(json.dumps(told))
    checkpoint = pretrained.load(folder)
    with pytest.raises(ValueError, match=r"tokenizer.json' must give ids below 20, the rows .* table, got 40"):
        pretrained.cut(checkpoint, "rank " * 20 + "added")
    assert pretrained.cut(checkpoint, "rank " * 20 + "added", limit=1).ids.max() == 4  # not among those that run
