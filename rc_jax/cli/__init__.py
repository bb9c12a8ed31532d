"""The command line, `rc-jax`: quick answers from the shell. JAX is imported only when there is something to compute."""

from rc_jax.cli.command import main

__all__ = ["main"]
