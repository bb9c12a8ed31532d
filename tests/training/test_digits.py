"""Digits as patches against scikit-learn's pictures."""

import sys

import numpy as np
import pytest

from rc_jax.training import tasks


@pytest.fixture
def pictures():
    found = pytest.importorskip("sklearn.datasets").load_digits()
    return found["images"], found["target"]


@pytest.mark.parametrize(("patch", "shape"), [(1, (64, 1)), (2, (16, 4)), (4, (4, 16)), (8, (1, 64))])
def test_patches_put_together_are_the_pictures(pictures, patch, shape):
    images, target = pictures
    found = tasks.digits(patch=patch, every=5)
    held_out = np.arange(len(images)) % 5 == 4
    mean, std = images[~held_out].mean(), images[~held_out].std()
    for x, labels, rows in (
        (found.train_x, found.train_labels, ~held_out),
        (found.test_x, found.test_labels, held_out),
    ):
        assert x.shape == (rows.sum(), *shape)
        assert x.dtype == np.float32
        np.testing.assert_array_equal(labels, target[rows])
        for picture, image in zip(np.asarray(x)[:3], images[rows][:3], strict=True):
            across = 8 // patch
            put = np.block(
                [[picture[across * i + j].reshape(patch, patch) for j in range(across)] for i in range(across)]
            )
            np.testing.assert_allclose(put, (image - mean) / std, atol=1e-5)


def test_pixels_that_are_trained_on_have_mean_0_and_deviation_1(pictures):
    x = np.asarray(tasks.digits().train_x, float)
    assert abs(x.mean()) < 1e-5 and abs(x.std() - 1) < 1e-5


def test_nothing_held_out_is_trained_on_and_nothing_is_lost(pictures):
    images, _ = pictures
    found = tasks.digits(patch=8, every=7)
    assert len(found.train_x) + len(found.test_x) == len(images)
    train = {row.tobytes() for row in np.asarray(found.train_x)}
    same = {row.tobytes() for row in images.astype(np.uint8).reshape(len(images), -1)}
    assert len(same) == len(images), "no picture is there twice, so none can be on both sides"
    assert not train & {row.tobytes() for row in np.asarray(found.test_x)}


def test_without_scikit_learn_the_error_says_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"scikit-learn.*rc_jax\[training\]"):
        tasks.digits()


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"patch": 3}, ValueError, "`patch` must divide 8, the side of a picture, got 3"),
        ({"patch": 16}, ValueError, "`patch` must divide 8"),
        ({"patch": 2.0}, TypeError, "`patch` must be an integer"),
        ({"every": 1}, ValueError, "`every` must be an integer >= 2, got 1"),
        ({"every": 5000}, ValueError, "`every` must be at most 1797"),
    ],
)
def test_bad_input(pictures, arguments, error, message):
    with pytest.raises(error, match=message):
        tasks.digits(**arguments)
