"""`python -m experiments`: see `experiments.command`."""

import sys

from experiments.command import main

if __name__ == "__main__":
    sys.exit(main())
