"""Data sets that come with other packages: the text of Python's help, and scikit-learn's digits."""

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
    text = tasks.characters(vocabulary=vocabulary, held_out=held_out)
    names = [*text.symbols, OTHER]
    back = "".join(np.array(names)[np.concatenate([text.train, text.test])])
    common, counts = set(text.symbols), Counter(TEXT)
    same = back == "".join(character if character in common else OTHER for character in TEXT)
    assert same
    assert len(text.test) == round(len(TEXT) * held_out)
    assert len(text.symbols) == min(vocabulary - 1, len(counts))
    sizes = [counts[character] for character in text.symbols]
    assert sizes == sorted(sizes, reverse=True)
    assert all(counts[character] <= sizes[-1] for character in counts if character not in common)
    assert text.length == len(TEXT) and text.digest == hashlib.sha256(TEXT.encode()).hexdigest()[:16]


def test_windows_are_pieces_and_what_follows(key):
    x, following = (np.asarray(part) for part in tasks.windows(key, jnp.arange(50), 500, 7))
    assert x.shape == following.shape == (500, 7)
    np.testing.assert_array_equal(x, x[:, :1] + np.arange(7))
    np.testing.assert_array_equal(following, x + 1)
    assert set(x[:, 0]) == set(range(50 - 7))  # every start there is, to the last
    x, _ = tasks.windows(key, jnp.arange(4), 3, 3)  # a text of one symbol more than a piece
    np.testing.assert_array_equal(x, [[0, 1, 2]] * 3)


@pytest.fixture
def pictures():
    data = pytest.importorskip("sklearn.datasets").load_digits()
    return data["images"], data["target"]


@pytest.mark.parametrize(("patch", "shape"), [(1, (64, 1)), (2, (16, 4)), (4, (4, 16)), (8, (1, 64))])
def test_patches_put_together_are_the_pictures(pictures, patch, shape):
    images, target = pictures
    data = tasks.digits(patch=patch, every=5)
    held_out = np.arange(len(images)) % 5 == 4
    mean, std = images[~held_out].mean(), images[~held_out].std()
    across = 8 // patch
    for x, labels, rows in (
        (data.train_x, data.train_labels, ~held_out),
        (data.test_x, data.test_labels, held_out),
    ):
        assert x.shape == (rows.sum(), *shape) and x.dtype == np.float32
        np.testing.assert_array_equal(labels, target[rows])
        for picture, image in zip(np.asarray(x)[:3], images[rows][:3], strict=True):
            blocks = picture.reshape(across, across, patch, patch)
            np.testing.assert_allclose(np.block([list(row) for row in blocks]), (image - mean) / std, atol=1e-5)


def test_held_out_pictures_are_not_trained_on_and_no_picture_is_lost(pictures):
    images, _ = pictures
    data = tasks.digits(patch=8, every=7)
    assert len(data.train_x) + len(data.test_x) == len(images)
    different = {row.tobytes() for row in images.astype(np.uint8).reshape(len(images), -1)}
    assert len(different) == len(images), "no picture occurs twice, so none can be on both sides"
    train = {row.tobytes() for row in np.asarray(data.train_x)}
    assert not train & {row.tobytes() for row in np.asarray(data.test_x)}


@pytest.mark.parametrize(
    ("module", "call", "text"),
    [
        ("pydoc_data.topics", tasks.characters, "pydoc_data"),
        ("sklearn.datasets", tasks.digits, r"scikit-learn.*rc_jax\[training\]"),
    ],
)
def test_an_absent_package_is_named(module, call, text, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=text):
        call()


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
        (lambda: tasks.digits(patch=3), ValueError, "`patch` must divide 8, the side of a picture, got 3"),
        (lambda: tasks.digits(patch=2.0), TypeError, "`patch` must be an integer"),
        (lambda: tasks.digits(every=1), ValueError, "`every` must be an integer >= 2, got 1"),
        (lambda: tasks.digits(every=5000), ValueError, "`every` must be at most 1797"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
