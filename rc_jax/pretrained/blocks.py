"""Parts of tracing that the command line is built of; kept within the package."""

from rc_jax.pretrained.checkpoint import stated_layout
from rc_jax.pretrained.packaged import PACKAGED, Kind
from rc_jax.pretrained.tracing import batches, windows_at_a_time

__all__ = [
    "PACKAGED",
    "Kind",
    "batches",
    "stated_layout",
    "windows_at_a_time",
]
