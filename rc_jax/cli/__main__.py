"""`python -m rc_jax.cli`, for where the script `rc-jax` is not on the path."""

import sys

from rc_jax.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
