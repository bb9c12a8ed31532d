"""The provenance of a result: versions, device, precision, commit, time. It starts JAX's backend."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from experiments.lib import figure
from experiments.run import identity


def provenance(name: str, spec: Any, seconds: float, code: str) -> dict[str, Any]:
    """Everything a reader needs to judge or repeat a result, as plain JSON values."""
    import jax
    import numpy as np

    # The identity, then everything that may change the numbers without being part of it.
    devices = jax.devices()
    return {
        **identity.identity(name, spec),
        "code": code,
        "commit": commit(Path(figure.__file__).parent),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "device": f"{len(devices)} × {devices[0].device_kind} ({devices[0].platform})",
        "precision": f"{spec.dtype}, matrix products highest",
        "xla_flags": os.environ.get("XLA_FLAGS", "").strip(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "machine": f"{processor()}, {cores()} cores",
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
    }


def commit(folder: Path) -> str | None:
    """The commit of the checkout that holds this code, marked where files were changed since; `None` outside one."""

    def git(*words: str) -> str:
        asked = ["git", "-C", str(folder), *words]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "figure.py")  # another project's checkout may lie around an installed copy
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD")[:12] + (" with changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
