"""Sorted sequences, against Python's own sort."""

import numpy as np
import pytest

from rc_jax.training import tasks


def test_against_python(key):
    tokens, labels = (np.asarray(each) for each in tasks.sorting(key, 2000))
    assert tokens.shape == labels.shape == (2000, 8)
    for given, wanted in zip(tokens.tolist(), labels.tolist(), strict=True):
        assert sorted(given) == wanted


def test_symbols_are_equally_likely_and_repeat(key):
    tokens = np.asarray(tasks.sorting(key, 2000)[0])
    counts = np.bincount(tokens.ravel(), minlength=10)
    assert counts.size == 10
    assert np.all(np.abs(counts - 1600) < 5 * (16_000 * 0.09) ** 0.5)
    assert any(len(set(row)) < 8 for row in tokens.tolist())


def test_key_decides(key):
    assert (tasks.sorting(key, 2000)[0] == tasks.sorting(key, 2000)[0]).all()


@pytest.mark.usefixtures("as_installed")
def test_bad_input_is_refused(key):
    with pytest.raises(TypeError, match="`key` must be one typed key"):
        tasks.sorting(0, 5)
    with pytest.raises(ValueError, match="`symbols` must be an integer >= 1, got 0"):
        tasks.sorting(key, 5, symbols=0)
