"""The table of agreement in docs/checkpoints.md: `python -m tests.pretrained.parity_page` measures it and writes it."""

import datetime
import pathlib
import re
import tempfile

import numpy as np

from experiments.run.provenance import cores, processor
from tests.pretrained import test_parity_families as parity

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "checkpoints.md"
BLOCK = re.compile(r"(?<=<!-- parity -->\n).*(?=<!-- end of parity -->)", re.DOTALL)
HEAD = "| layout | class | states, relative | attention, absolute |\n|---|---|---:|---:|"


def rows():
    """One row for each case: what was compared, and the largest distances over all layers."""
    for case, (model, *_) in parity.CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            (states, weights), (their_states, their_weights) = parity.compared(pathlib.Path(folder), parity.made(case))
        relative = np.abs(states - their_states).max() / np.abs(their_states).max()
        yield f"| {case} | `{model}` | {relative:.1e} | {np.abs(weights - their_weights).max():.1e} |"


def main():
    """Write the table into the page."""
    versions = f"transformers {parity.transformers.__version__}, torch {parity.torch.__version__}, float32"
    where = f"{processor()}, {cores()} cores; {datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    table = "\n".join([HEAD, *rows()])
    PAGE.write_text(BLOCK.sub(lambda _: f"\n{table}\n\n{versions}; {where}.\n\n", PAGE.read_text()))


if __name__ == "__main__":
    main()
