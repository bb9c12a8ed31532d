"""Handwritten digits as sequences of patches: a real data set that comes with scikit-learn."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rc_jax._numerics import arguments

SIDE = 8  # pixels, of a square picture


class Digits(NamedTuple):
    """Pictures as patches in reading order, with their digits, in a part to train on and a part held out."""

    train_x: Float[Array, "picture token feature"]
    train_labels: Int[Array, " picture"]
    test_x: Float[Array, "held_out token feature"]
    test_labels: Int[Array, " held_out"]


@arguments.guard(every=arguments.integer(2))
def digits(*, patch: int = 2, every: int = 5) -> Digits:
    """The 1797 digits of 8 × 8 pixels that come with scikit-learn, divided into square patches.

    A token is one patch: its patch² pixels, row by row, scaled so that all training pixels have mean 0 and standard
    deviation 1. The split is fixed: pictures number every−1, 2·every−1, … of scikit-learn's order are held out. They
    are by the same writers as the others.

    Args:
        patch: side of a patch in pixels, a divisor of 8: 1, 2, 4 and 8 make 64, 16, 4 and 1 tokens.
        every: one picture in so many is held out.

    Returns:
        The pictures: (picture, token, feature) and labels 0 … 9.

    Raises:
        ImportError: scikit-learn is not installed; the extra `training` brings it.

    Source: Alpaydin and Kaynak 1998, Optical recognition of handwritten digits, UCI repository (its test pictures).

    Example:
        >>> from rc_jax.training import tasks
        >>> data = tasks.digits(patch=2)
        >>> data.train_x.shape, data.test_x.shape
        ((1438, 16, 4), (359, 16, 4))
    """
    if SIDE % patch:
        raise ValueError(f"`patch` must divide {SIDE}, the side of a picture, got {patch}")
    pictures, labels = _load()
    if every > len(pictures):
        raise ValueError(f"`every` must be at most {len(pictures)}, the number of pictures, got {every}")
    held_out = np.arange(len(pictures)) % every == every - 1
    pixels = pictures[~held_out]
    across = SIDE // patch
    patches = ((pictures - pixels.mean()) / pixels.std()).reshape(-1, across, patch, across, patch)
    tokens = jnp.asarray(patches.transpose(0, 1, 3, 2, 4).reshape(len(pictures), across**2, patch**2), float)
    labels = jnp.asarray(labels, jnp.int32)
    return Digits(tokens[~held_out], labels[~held_out], tokens[held_out], labels[held_out])


def _load() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn, which is not installed: pip install 'rc_jax[training]'"
        ) from error
    data: Any = load_digits()
    return np.asarray(data["images"], float), np.asarray(data["target"])
