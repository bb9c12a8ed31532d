"""A training on disk: who it is, a line of metrics for every record, and the last state of its lanes.

`run.json` says what the folder holds; `metrics.jsonl` grows by one line for each record, so that a running training can
be looked at; `state/` is the checkpoint (orbax), which replaces the one before it only when it is complete. Lines that
a killed run wrote past its last checkpoint are cut off when it is taken up again, and measured again.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

IDENTITY, METRICS, STATE = "run.json", "metrics.jsonl", "state"


class Folder:
    """What a training writes down, and finds there when it is taken up again."""

    def __init__(self, path: Path, identity: dict[str, Any], seconds: float):
        self.path, self.seconds, self.saved = path.absolute(), seconds, time.monotonic()
        self.path.mkdir(parents=True, exist_ok=True)
        known = self.path / IDENTITY
        if known.exists():
            _check_same(self.path, json.loads(known.read_text()), identity)
        else:
            write_whole(known, json.dumps(identity, indent=1))
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        self.manager = ocp.CheckpointManager(self.path / STATE, options=options)

    def load(self, like: PyTree) -> tuple[int, PyTree, list[dict[str, Any]]] | None:
        """Step, state and metrics up to it, as the last checkpoint left them; None where there is none yet."""
        step = self.manager.latest_step()
        lines = [line for line in _lines(self.path / METRICS) if step is not None and line["step"] <= step]
        write_whole(self.path / METRICS, "".join(json.dumps(line) + "\n" for line in lines))
        if step is None:
            return None
        leaves, tree = jax.tree.flatten(like)
        found = self.manager.restore(step, args=ocp.args.StandardRestore(_named(leaves)))
        return step, tree.unflatten([found[name] for name in _named(leaves)]), lines

    def record(self, line: dict[str, Any], state: PyTree, *, last: bool) -> None:
        """Add one line of metrics; replace the checkpoint where the last one is old, or this is the end."""
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps({name: np.asarray(value).tolist() for name, value in line.items()}) + "\n")
        if last or time.monotonic() - self.saved >= self.seconds:
            leaves = _named(jax.tree.leaves(state))
            self.manager.save(int(line["step"]), args=ocp.args.StandardSave(leaves), force=True)
            self.saved = time.monotonic()

    def close(self) -> None:
        """Let go of the checkpoint's threads."""
        self.manager.close()


def _named(leaves: list[Any]) -> dict[str, Any]:
    """Leaves under names that keep their order."""
    return {f"{index:05d}": leaf for index, leaf in enumerate(leaves)}


def write_whole(path: Path, text: str) -> None:
    """Write under another name and rename, so that nobody sees half a file."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file that a killed run may have left with half a line at its end."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


def _check_same(path: Path, known: dict[str, Any], identity: dict[str, Any]) -> None:
    came = json.loads(json.dumps(identity))
    for name in came.keys() | known.keys():
        if known.get(name) != came.get(name):
            raise ValueError(
                f"`folder` must be empty or hold this same training, got {path}, whose run has another {name}: "
                f"{known.get(name)!r}, not {came.get(name)!r}"
            )
