"""What files mean, asked by several threads and after an edit."""

import gc
import sys
import threading
from types import SimpleNamespace

from experiments.running import sources


def test_what_this_process_has_imported_is_remembered(tmp_path, monkeypatch):
    path = tmp_path / "remembered.py"
    path.write_text("x = 1\n")
    monkeypatch.setitem(sys.modules, "experiments.remembered", SimpleNamespace(__file__=str(path)))
    sources.remember()
    path.write_text("x = 2\n")
    (tmp_path / "same.py").write_text("x = 1\n")
    assert sources.meaning(path) == sources.meaning(tmp_path / "same.py")


def test_two_threads_can_ask_for_the_meaning_of_files():
    # In Python 3.11 the collector may hand over to the other thread in the middle of a tree.
    class Late:
        def __init__(self):
            self.me = self

        def __del__(self):
            sum(range(50))

    def ask(depth):
        if depth:
            return ask(depth - 1)
        try:
            for path in files:
                [Late() for _ in range(20)]
                sources.meaning.__wrapped__(path)
        except SystemError as error:
            errors.append(str(error))

    files, errors = sorted((sources.ROOT / "rc_jax").rglob("*.py")), []
    before, threshold = sys.getswitchinterval(), gc.get_threshold()
    threads = [threading.Thread(target=ask, args=(depth,)) for depth in (0, 150)]
    try:
        sys.setswitchinterval(1e-6)
        gc.set_threshold(100, 2, 2)
        for step in (threading.Thread.start, threading.Thread.join):
            for thread in threads:
                step(thread)
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*threshold)
    assert errors == []
