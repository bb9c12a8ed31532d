"""`rc-jax architecture`: an untrained network, layer by layer, by its config alone."""

from typing import Any

import jax

from rc_jax import study
from rc_jax.cli.arguments import Report, Usage, bounded, check_figure

REFUSED = (OSError, ValueError, TypeError, MemoryError)


def run(arguments: Any) -> Report:
    """Study one config."""
    if len(arguments.config) != 1:
        raise Usage(f"`CONFIG` must be one file or folder, got {' '.join(arguments.config) or 'nothing'}")
    if arguments.figure is not None:
        check_figure(arguments.figure)
    for name, least in (("tokens", 2), ("samples", 1), ("width", 2)):
        if getattr(arguments, name) is not None:
            bounded(f"--{name}", getattr(arguments, name), least, 2**20)
    if arguments.gain is not None:
        bounded("--gain", arguments.gain, 0, above=True)
    seed = bounded("--seed", arguments.seed, 0, 2**31 - 1)
    given = {name: getattr(arguments, name) for name in ("tokens", "samples", "gain", "width")}
    changes = "usual" if arguments.changes else None
    try:
        found = study.architecture(arguments.config[0], key=jax.random.key(seed), changes=changes, **given)
    except REFUSED as error:
        raise Usage(" ".join(f"{error}".split())) from error
    if arguments.figure is not None:
        found.figure().savefig(arguments.figure)
    return Report(str(found), found.to_dict())
