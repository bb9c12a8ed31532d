"""Random initialisations per second, weights included: peers, and this package in three arithmetics."""

import functools
from collections.abc import Callable, Iterator

import jax
import numpy as np

from experiments.benchmarks import peers
from experiments.benchmarks.contest import Contest, mean_and_error, same_law
from experiments.benchmarks.counts import count as counted
from experiments.benchmarks.shapes import BASE, SEEN, SMALL, Shape, plain
from rc_jax import collapse, ensemble, network

LOOP, VMAP, NUMPY = "PyTorch, a loop", "PyTorch, torch.func.vmap", "NumPy and SciPy, a loop"
PLAIN = "rc_jax, plain: hidden_states(random_layers)"
EXACT = "rc_jax, exact: log_residuals(random_layers)"
WIDTH_FREE = "rc_jax, width-free: sample_log_residuals"


def contests(count: int) -> Iterator[Contest]:
    """At a small shape and at that of BERT-base."""
    for shape in (SMALL, BASE):
        yield contest(shape, shape.of(count))


def ours(shape: Shape) -> dict[str, Callable[[jax.Array], jax.Array]]:
    """This package's ways to one initialisation's residuals, each a function of a key."""
    x, spec = shape.input(), shape.spec
    return {
        PLAIN: lambda key: plain(network.random_layers(key, spec), x, spec),
        EXACT: lambda key: collapse.log_residuals(network.random_layers(key, spec), x, spec),
        WIDTH_FREE: functools.partial(collapse.sample_log_residuals, x=x, spec=spec),
    }


def theirs(shape: Shape, count: int) -> dict[str, Callable[[], np.ndarray]]:
    """The peers' ways to `count` initialisations, as sides of a contest."""
    x, spec = np.asarray(shape.input()), shape.spec
    sizes = (x, spec.attention.heads, spec.depth, shape.inner, count)
    ways = {
        LOOP: lambda: peers.torch_drawn(*sizes),
        VMAP: lambda: peers.torch_drawn(*sizes, together=shape.together),
        NUMPY: lambda: peers.numpy_drawn(*sizes),
    }
    return {name: lambda way=way: mean_and_error(way()[:, :SEEN]) for name, way in ways.items()}


def averaged(fn: Callable[[jax.Array], jax.Array], count: int) -> Callable[[], np.ndarray]:
    """A side that runs an ensemble of `count`."""

    def side() -> np.ndarray:
        return mean_and_error(ensemble.run(fn, jax.random.key(0), count)[:, :SEEN])

    return side


def contest(shape: Shape, count: int) -> Contest:
    """Peers draw other numbers than we do, so means are compared in standard errors."""
    mine, key = ours(shape), jax.random.key(0)
    counts = {name: counted(fn, key) for name, fn in mine.items()}
    others = theirs(shape, count)
    return Contest(
        title=f"Initialisations, {shape.words}",
        unit="initialisations/s",
        work=count,
        sides=others | {name: averaged(fn, count) for name, fn in mine.items()},
        baseline=LOOP,
        agree=same_law,
        counts=counts | dict.fromkeys(others, counts[PLAIN]),
    )
