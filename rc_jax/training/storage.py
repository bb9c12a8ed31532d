"""A training on disk: its identity, one line of metrics for every record, and its last checkpoint.

`run.json` holds the identity. `metrics.jsonl` grows by one line for each record, so that a running training can be
watched. `state/` is the checkpoint (orbax), which replaces the one before it only when it is complete; it holds the
SHA-256 of its numbers and of the lines up to it. A killed run may have written lines past its last checkpoint, or
before its first; a resumed run drops these lines and measures them again. No other training may.
"""

import hashlib
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
DIGEST, _NO_DIGEST = "digest", np.zeros(32, np.uint8)


class Damaged(ValueError):
    """A folder holds a training that can be neither resumed nor trusted: delete it to begin again."""


class Folder:
    """The folder of one training, for one process at a time."""

    def __init__(self, path: Path, identity: dict[str, Any], seconds: float):
        self.path, self.seconds, self.saved = path.absolute(), seconds, time.monotonic()
        self.records = hashlib.sha256()  # of the lines of metrics so far
        self.path.mkdir(parents=True, exist_ok=True)
        # One training at a time holds the folder. Where nothing is recorded yet this one's identity is written, else it
        # must be the same.
        lock = files.hold(self.path / LOCK)
        if lock is None:
            raise ValueError(f"`folder` must not be in use by another training, got {self.path}")
        self.lock = lock
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        self.manager = ocp.CheckpointManager(self.path / STATE, options=options)
        try:
            metrics, trained = self.path / METRICS, self.manager.latest_step() is not None
            recorded = metrics.exists() and metrics.stat().st_size > 0
            if recorded and not trained and not (self.path / IDENTITY).exists():
                raise ValueError(
                    f"`folder` must be empty or hold this same training, got {self.path}, whose {METRICS} is no "
                    f"training's, for it has no {IDENTITY}: give another folder, or move that file elsewhere"
                )
            if recorded or trained:
                self._check_same(identity)
            else:  # nothing was trained here yet, whatever was tried
                files.write_whole(self.path / IDENTITY, json.dumps(identity, indent=1))
        except BaseException:
            self.close()
            raise

    def load(self, like: PyTree) -> tuple[int, PyTree, list[dict[str, Any]]] | None:
        """Step, state and metrics of the last checkpoint; None before the first one.

        Raises:
            Damaged: the checkpoint cannot be read, records before it are missing, or either has changed.
        """
        step = self.manager.latest_step()
        self.records = hashlib.sha256()
        if step is None:
            files.write_whole(self.path / METRICS, "")
            return None

        # The records up to the checkpoint: lines after it are measured again.
        lines, kept = list[dict[str, Any]](), b""
        for content, line in files.json_lines(self.path / METRICS):
            if line is None or (lines and lines[-1].get("step") == step):
                break
            lines.append(line)
            kept += content
        if not lines or lines[-1].get("step") != step:
            raise self._damaged(f"its records up to the checkpoint at step {step} are not all there")
        self.records.update(kept)

        leaves, tree = jax.tree.flatten(like)
        try:
            arrays = self.manager.restore(step, args=ocp.args.StandardRestore(_content(leaves, _NO_DIGEST)))
            stored = [arrays[name] if leaf.size else leaf for name, leaf in _named(leaves).items()]
            same = np.array_equal(arrays[DIGEST], self._digest(stored))
        except Exception as error:
            raise self._damaged(f"its checkpoint cannot be read ({type(error).__name__})") from error
        if not same:
            raise self._damaged(f"the numbers of its checkpoint or of its records up to step {step} have changed")
        files.write_whole(self.path / METRICS, kept)
        return step, tree.unflatten(map(_unbound, stored)), lines

    def record(self, line: dict[str, Any], state: PyTree, *, last: bool) -> None:
        """Add one line of metrics; replace the checkpoint where the last one is old, or this is the end."""
        self.records.update(files.append_json_line(self.path / METRICS, line))
        if last or time.monotonic() - self.saved >= self.seconds:
            leaves = jax.tree.leaves(state)
            content = _content(leaves, self._digest(leaves))
            self.manager.save(int(line["step"]), args=ocp.args.StandardSave(content), force=True)
            self.saved = time.monotonic()

    def _digest(self, leaves: list[Any]) -> np.ndarray:
        """SHA-256 of the state and of the records that belong to it."""
        whole = self.records.copy()
        for leaf in leaves:
            array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
            whole.update(f"{leaf.dtype} {array.shape}".encode() + array.tobytes())  # a key is not its two numbers
        return np.frombuffer(whole.digest(), np.uint8)

    def close(self) -> None:
        """Release the folder and the checkpoint's threads."""
        self.manager.close()
        self.lock.release()

    def _check_same(self, identity: dict[str, Any]) -> None:
        try:
            known = dict[str, Any](json.loads((self.path / IDENTITY).read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
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


def _content(leaves: list[Any], digest: np.ndarray) -> dict[str, Any]:
    """What a checkpoint holds: no leaves of size zero, which orbax refuses and whose shape says all."""
    return {name: leaf for name, leaf in _named(leaves).items() if leaf.size} | {DIGEST: digest}


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _unbound(leaf: Any) -> Any:
    """A restored array without its binding to a device, with which it would be compiled for anew."""
    if _is_key(leaf):
        data = jnp.asarray(np.asarray(jax.random.key_data(leaf)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))
