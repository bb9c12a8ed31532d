"""A training on disk: its identity, one line of metrics for every record, and its last checkpoint.

`run.json` holds the identity. `metrics.jsonl` grows by one line for each record, so that a running training can be
watched. `state/` is the checkpoint (orbax), which replaces the one before it only when it is complete. A killed run may
have written lines past its last checkpoint; a resumed run drops these lines and measures them again.
"""

import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from rc_jax._numerics import files
from rc_jax._numerics.jax_names import PyTree

IDENTITY, METRICS, STATE, LOCK = "run.json", "metrics.jsonl", "state", ".lock"


class Damaged(ValueError):
    """A folder holds a training that can be neither resumed nor trusted: delete it to begin again."""


class Folder:
    """The folder of one training, for one process at a time."""

    def __init__(self, path: Path, identity: dict[str, Any], seconds: float):
        self.path, self.seconds, self.saved = path.absolute(), seconds, time.monotonic()
        self.path.mkdir(parents=True, exist_ok=True)
        # One training at a time holds the folder. Where nothing is trained yet this one's identity is written, else it
        # must be the same.
        lock = files.hold(self.path / LOCK)
        if lock is None:
            raise ValueError(f"`folder` must not be in use by another training, got {self.path}")
        self.lock = lock
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        self.manager = ocp.CheckpointManager(self.path / STATE, options=options)
        try:
            if self.manager.latest_step() is None:  # nothing was trained here yet, whatever was tried
                files.write_whole(self.path / IDENTITY, json.dumps(identity, indent=1))
            else:
                self._check_same(identity)
        except BaseException:
            self.close()
            raise

    def load(self, like: PyTree) -> tuple[int, PyTree, list[dict[str, Any]]] | None:
        """Step, state and metrics of the last checkpoint; None before the first one.

        Raises:
            Damaged: the checkpoint cannot be read, or records before it are missing.
        """
        step = self.manager.latest_step()
        if step is None:
            files.write_whole(self.path / METRICS, "")
            return None
        lines = [line for line in files.json_lines(self.path / METRICS) if line["step"] <= step]
        steps = [line["step"] for line in lines]
        if not steps or (steps[0], steps[-1]) != (0, step) or steps != sorted(set(steps)):
            raise self._damaged(f"its records up to the checkpoint at step {step} are not all there")
        leaves, tree = jax.tree.flatten(like)
        try:
            arrays = self.manager.restore(step, args=ocp.args.StandardRestore(_named(leaves)))
        except Exception as error:
            raise self._damaged(f"its checkpoint cannot be read ({type(error).__name__})") from error
        files.write_whole(self.path / METRICS, "".join(map(files.json_line, lines)))
        return step, tree.unflatten([_unbound(arrays[name]) for name in _named(leaves)]), lines

    def record(self, line: dict[str, Any], state: PyTree, *, last: bool) -> None:
        """Add one line of metrics; replace the checkpoint where the last one is old, or this is the end."""
        with (self.path / METRICS).open("a") as file:
            file.write(files.json_line(line))
        if last or time.monotonic() - self.saved >= self.seconds:
            leaves = _named(jax.tree.leaves(state))
            self.manager.save(int(line["step"]), args=ocp.args.StandardSave(leaves), force=True)
            self.saved = time.monotonic()

    def close(self) -> None:
        """Release the folder and the checkpoint's threads."""
        self.manager.close()
        self.lock.release()

    def _check_same(self, identity: dict[str, Any]) -> None:
        try:
            known = json.loads((self.path / IDENTITY).read_text())
        except (OSError, json.JSONDecodeError):
            raise self._damaged(f"its {IDENTITY} cannot be read") from None
        own = json.loads(json.dumps(identity))
        for name in own | known:
            if known.get(name) != own.get(name):
                raise ValueError(
                    f"`folder` must be empty or hold this same training, got {self.path}, whose run has another "
                    f"{name}: {known.get(name)!r}, not {own.get(name)!r}"
                )

    def _damaged(self, what: str) -> Damaged:
        return Damaged(f"`folder` holds a damaged training, {self.path}: {what}; delete it to begin again")


def _named(leaves: list[Any]) -> dict[str, Any]:
    """Leaves under names that keep their order."""
    return {f"{index:05d}": leaf for index, leaf in enumerate(leaves)}


def _unbound(leaf: Any) -> Any:
    """A restored array without its binding to a device, with which it would be compiled for anew."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jnp.asarray(np.asarray(jax.random.key_data(leaf)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))
