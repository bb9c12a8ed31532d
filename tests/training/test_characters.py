"""The text as symbols, read back, and its windows."""

import hashlib
import sys
from collections import Counter
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax.training import tasks

TEXT = "\n".join(topics[name] for name in sorted(topics))
OTHER = "\ue000"  # a character that no text has


@pytest.mark.parametrize(("vocabulary", "held_out"), [(2, 0.5), (40, 0.1), (1000, 0.01)])
def test_symbols_read_back_are_the_text(vocabulary, held_out):
    found = tasks.characters(vocabulary=vocabulary, held_out=held_out)
    names = [*found.symbols, OTHER]
    back = "".join(np.array(names)[np.concatenate([found.train, found.test])])
    common = set(found.symbols)
    same = back == "".join(each if each in common else OTHER for each in TEXT)
    assert same
    assert len(found.test) == round(len(TEXT) * held_out)
    assert len(found.symbols) == min(vocabulary - 1, len(set(TEXT)))
    counts = Counter(TEXT)
    sizes = [counts[each] for each in found.symbols]
    assert sizes == sorted(sizes, reverse=True)
    assert all(counts[each] <= sizes[-1] for each in counts if each not in common)
    assert found.length == len(TEXT) and found.digest == hashlib.sha256(TEXT.encode()).hexdigest()[:16]


def test_windows_are_pieces_and_what_follows(key):
    text = jnp.arange(50)
    x, following = tasks.windows(key, text, 500, 7)
    assert x.shape == following.shape == (500, 7)
    x, following = np.asarray(x), np.asarray(following)
    np.testing.assert_array_equal(x, x[:, :1] + np.arange(7))
    np.testing.assert_array_equal(following, x + 1)
    assert set(x[:, 0]) == set(range(50 - 7))  # every place there is, to the last
    np.testing.assert_array_equal(x, tasks.windows(key, text, 500, 7)[0])
    assert (x != np.asarray(tasks.windows(jax.random.fold_in(key, 1), text, 500, 7)[0])).any()


def test_a_text_of_one_window_more_than_a_piece(key):
    x, following = tasks.windows(key, jnp.arange(4), 3, 3)
    np.testing.assert_array_equal(x, [[0, 1, 2]] * 3)
    np.testing.assert_array_equal(following, [[1, 2, 3]] * 3)


def test_without_help_topics_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ImportError, match="pydoc_data"):
        tasks.characters()


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tasks.characters(vocabulary=1), ValueError, "`vocabulary` must be an integer >= 2, got 1"),
        (lambda: tasks.characters(held_out=1.0), ValueError, "`held_out` must be > 0 and < 1, got 1"),
        (lambda: tasks.characters(held_out="some"), TypeError, "`held_out` must be a real number"),
        (lambda: tasks.windows(jax.random.key(0), jnp.arange(5), 1, 5), ValueError, "`text` must have more symbols"),
        (lambda: tasks.windows(jax.random.key(0), jnp.ones(5), 1, 2), TypeError, "`text` must be an array of integers"),
        (lambda: tasks.windows(0, jnp.arange(5), 1, 2), TypeError, "`key` must be one typed key"),
        (lambda: tasks.windows(jax.random.key(0), jnp.arange(5), 0, 2), ValueError, "`count` must be an integer >= 1"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
