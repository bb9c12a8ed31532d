"""One call in a process of its own: `python -m experiments.run.process ANSWER` reads it from its input."""

import contextlib
import gc
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO


def main(answer: Path) -> None:
    """Make the call that `executors.Processes` writes to this process, and write what it returns to a file."""
    given = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a figure that reads its input would wait for ever
    gc.set_threshold(50_000, 20, 50)  # a trace makes many objects and hardly any rubbish
    result, error = None, None
    try:
        fn, args, kwargs = pickle.load(given)
        threading.Thread(target=_end_with_run, args=(given,), daemon=True).start()
        result = fn(*args, **kwargs)
    except BaseException as raised:
        error = raised
    partial = answer.with_suffix(".partial")
    partial.write_bytes(pickle.dumps((result, error)))
    partial.rename(answer)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(0)  # threads that the call left running are not waited for


def _end_with_run(given: BinaryIO) -> None:
    """Wait for the end of the pipe: the run has gone, also where it was killed. Then end all that this call started."""
    given.read()
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
