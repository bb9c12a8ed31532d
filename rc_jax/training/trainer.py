"""`train`: the host's half of a training, which records, reports, writes to disk and resumes."""

import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import Partial
from jaxtyping import Array, Key
from tqdm import tqdm

from rc_jax._numerics import arguments
from rc_jax._numerics.jax_names import PyTree
from rc_jax.training import inputs, replicates
from rc_jax.training.replicates import Optimiser, Program, Replicate
from rc_jax.training.storage import Folder

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """A finished training of seeds × settings replicates.

    Attributes:
        step: (record,) steps taken at each record, beginning with 0.
        metrics: arrays (seed, setting, record, ...): what `observe` returned, and the means of `loss` and
            `gradient_norm` over the steps since the record before, NaN at step 0. NaN from where a replicate stopped.
        failed: (seed, setting) the step at which a replicate was not finite and stopped, −1 where it finished.
    """

    step: np.ndarray
    metrics: dict[str, np.ndarray]
    failed: np.ndarray
    _program: Program = dataclasses.field(repr=False)
    _replicates: Replicate = dataclasses.field(repr=False)
    _settings: Any = dataclasses.field(repr=False)

    def map(self, fn: Callable[[Any, Any], PyTree]) -> PyTree:
        """`fn(model, setting)` for every replicate's last finite model: NumPy arrays (seed, setting, ...)."""
        values = _observed(self._program, inputs.carrying(fn), self._replicates, self._settings)
        return jax.tree.map(np.asarray, values)

    def model(self, seed: int = 0, setting: int = 0) -> Any:
        """The last finite model of one replicate."""
        seeds, count = self.failed.shape
        if not (0 <= seed < seeds and 0 <= setting < count):
            ends = f"0 … {seeds - 1} and 0 … {count - 1}"
            raise IndexError(f"`seed` and `setting` must be in {ends}, got {seed} and {setting}")
        one = jax.tree.map(lambda leaf: leaf[seed, setting], (self._replicates.weights, self._replicates.rest))
        return self._program.model(*one)


@arguments.guard(
    build=arguments.static_function,
    loss=arguments.static_function,
    steps=arguments.integer(1, 2**31 - 1),
    every=arguments.integer(1, 2**31 - 1),
    optimiser=inputs.optimiser,
    folder=inputs.folder,
    checkpoint_seconds=arguments.scalar(arguments.bounded(0)),
)
def train(
    key: Key[Array, ""],
    build: Callable[[Array, Any], nnx.Module],
    loss: Callable[[Any, Any, Any], Array],
    batches: Callable[[Array, Array], PyTree],
    *,
    steps: int,
    optimiser: Optimiser,
    every: int,
    settings: PyTree = None,
    seeds: int = 1,
    observe: Callable[[Any, Any], Mapping[str, Array]] | None = None,
    folder: str | Path | None = None,
    checkpoint_seconds: float = 5.0,
    progress: bool = False,
) -> Training:
    """Train one model for every seed and setting at the same time, in one compiled program.

    Seed s has the key `fold_in(key, s)`: all its settings start from one draw and see the same batches, so that they
    can be compared in pairs. What `settings` holds is traced; what changes shapes (width, switches) is another call.

    A replicate whose loss, gradient or new weights are not finite stops with its last finite weights. A warning is
    logged, its later metrics are NaN, and the other replicates go on.

    With a `folder`, every record adds a line to `metrics.jsonl`, and the state is saved every few seconds and at the
    end. A run that was killed resumes there, or begins again where nothing was saved yet, and ends with the same
    numbers. Asked for more steps, it goes on; if it had ended between two records, that end stays a record of its own.
    The folder stores the shapes and types of model, optimiser and observations, the key, the settings and the sizes,
    and refuses others. It stores a hash of the traced programs of all functions too, `build` included, so other
    functions are refused, and another version of JAX.

    JAX looks compiled programs up by `build`, `loss` and `optimiser`: pass the same objects, not new lambdas or a new
    `optax.adam(...)`, to train twice and compile once.

    Args:
        key: a typed key.
        build: (key, setting) → the `flax.nnx` module to train. Its `nnx.Param`s move; whatever else it holds stays, so
            `loss` must not make the module draw random numbers or count: dropout takes `rngs=nnx.Rngs(key)` with a key
            that `batches` returns.
        loss: (model, batch, setting) → one number.
        batches: (key, step) → batch; pure. `training.shuffled` makes one from a data set; a `jax.tree_util.Partial`
            carries arrays.
        steps: of the optimiser, in each replicate; a 32-bit integer.
        optimiser: an optax transformation, or a function setting → one, whose numbers may be traced.
        every: steps from one record to the next; the last one may come sooner.
        settings: a tree of arrays with one leading axis, one entry for each setting; None for a single one, `{}`.
        seeds: number of seeds.
        observe: (model, setting) → named arrays, measured at step 0 and at every record; a `jax.tree_util.Partial`
            carries held-out data.
        folder: where the training writes and from where it resumes.
        checkpoint_seconds: least time between two checkpoints; 0 for one at every record.
        progress: whether a bar with the time left is shown on stderr, where that is a terminal.

    Raises:
        ValueError: `settings` whose arrays have no common leading axis; a module without parameters, or one that draws
            or counts in `loss`; a folder that another process uses, that holds another training, records of none, or
            more steps; with a folder, a function that calls `jax.pure_callback` or `io_callback`, which cannot be
            compared; an observation named `step`, `loss` or `gradient_norm`.
        Damaged: a `ValueError` of its own: the folder's training can be neither resumed nor trusted.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from flax import nnx
        >>> from rc_jax import training
        >>> def build(key, setting):
        ...     return nnx.Linear(2, 1, rngs=nnx.Rngs(key))
        >>> def loss(model, x, setting):
        ...     return jnp.mean((model(x)[:, 0] - x[:, 0]) ** 2)
        >>> def batches(key, step):
        ...     return jax.random.normal(jax.random.fold_in(key, step), (32, 2))
        >>> rates = {"rate": jnp.array([0.01, 0.1, float("inf")])}
        >>> done = training.train(jax.random.key(0), build, loss, batches, steps=200, every=50, settings=rates,
        ...                       seeds=2, optimiser=lambda setting: optax.sgd(setting["rate"]))
        >>> done.metrics["loss"].shape, bool((done.metrics["loss"][:, 1, -1] < 1e-3).all()), done.failed[0].tolist()
        ((2, 3, 5), True, [-1, -1, 0])
    """
    settings, count = inputs.settings({} if settings is None else settings)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(seeds))
    first = jax.tree.map(lambda leaf: leaf[0], settings)
    program = Program(build, loss, optimiser, replicates.graph_of(build, keys[0], first))
    state = _start(program, keys, settings, jnp.arange(count))

    # A folder is refused, before anything is computed, if it holds another training.
    observing = None if observe is None else inputs.carrying(observe)
    shapes = {} if observing is None else jax.eval_shape(partial(_observed, program), observing, state, settings)
    observed, making, store = inputs.observations(shapes), inputs.carrying(batches), None
    if folder is not None:
        traced = [
            _start.trace(program, keys, settings, jnp.arange(count)),
            _advance.trace(program, making, state, keys, settings, np.int32(0), np.int32(every)),
        ]
        if observing is not None:
            traced.append(_observed.trace(program, observing, state, settings))
        same = inputs.fingerprint(traced, (making, observing))
        identity = inputs.identity(program.graph, state, observed, key, settings, seeds, every, same)
        store = Folder(Path(folder), identity, checkpoint_seconds)
    try:
        run = _Run(program, making, keys, settings, observing, store)
        return run.train(state, steps, every, progress)
    finally:
        if store is not None:
            store.close()


@dataclasses.dataclass(frozen=True)
class _Run:
    """What stays the same from record to record."""

    program: Program
    batches: Partial
    keys: Array
    settings: PyTree
    observe: Partial | None
    store: Folder | None

    def train(self, state: Replicate, steps: int, every: int, progress: bool) -> Training:
        """Train from the last checkpoint, or from step 0, to the last step."""
        empty: dict[str, Any] = {name: np.full(state.failed.shape, np.nan) for name in ("loss", "gradient_norm")}
        resumed = None if self.store is None else self.store.load(state)
        step, state, lines = resumed or (0, state, [self.record(0, empty, state, last=False)])
        if step > steps:
            raise ValueError(f"`steps` must be at least {step}, the step that `folder` has reached, got {steps}")

        silent = not progress or not sys.stderr.isatty()
        with tqdm(total=steps, initial=step, unit=" steps", disable=silent, dynamic_ncols=True) as bar:
            while step < steps:
                end, before = min(steps, (step // every + 1) * every), np.asarray(state.failed)
                means = empty
                if (before < 0).any():  # else every replicate has stopped
                    ends = np.int32(step), np.int32(end)
                    state, means = _advance(self.program, self.batches, state, self.keys, self.settings, *ends)
                lines.append(self.record(end, means, state, last=end == steps))
                _report(np.asarray(state.failed), before)
                bar.update(end - step)
                step = end

        # Records (record, seed, setting, ...) become metrics (seed, setting, record, ...).
        metrics = {
            name: np.stack([np.asarray(line[name], float) for line in lines], axis=2)
            for name in lines[-1]
            if name != "step"
        }
        at = np.array([line["step"] for line in lines])
        return Training(at, metrics, np.asarray(state.failed), self.program, state, self.settings)

    def record(self, step: int, means: Mapping[str, Any], state: Replicate, *, last: bool) -> dict[str, Any]:
        """Measure all replicates, and write the record to disk if there is a folder."""
        values = {} if self.observe is None else _observed(self.program, self.observe, state, self.settings)
        stopped = np.asarray(state.failed) >= 0
        line: dict[str, Any] = {"step": step} | {name: np.asarray(value) for name, value in means.items()}
        for name, value in values.items():
            lost = stopped.reshape(stopped.shape + (1,) * (value.ndim - stopped.ndim))
            line[name] = np.where(lost, np.nan, np.asarray(value, float))
        if self.store is not None:
            self.store.record(line, state, last=last)
        return line


_start = partial(jax.jit, static_argnums=0)(replicates.start)
_advance = partial(jax.jit, static_argnums=0)(replicates.advance)


@partial(jax.jit, static_argnums=0)
def _observed(program: Program, fn: Partial, state: Replicate, settings: PyTree) -> PyTree:
    def of_one(replicate: Replicate, setting: Any) -> PyTree:
        return fn(program.model(replicate.weights, replicate.rest), setting)

    return jax.vmap(jax.vmap(of_one), in_axes=(0, None))(state, settings)


def _report(failed: np.ndarray, before: np.ndarray) -> None:
    """Log the replicates that stopped since the last record."""
    message = "seed %d, setting %d stopped at step %d: loss, gradient or weights not finite; the others go on"
    for seed, setting in np.argwhere((failed >= 0) & (before < 0)):
        _LOG.warning(message, seed, setting, failed[seed, setting])
