"""Entry point of `python -m experiments.benchmarks`."""

import sys

from experiments.benchmarks.command import main

sys.exit(main())
