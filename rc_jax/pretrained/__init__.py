"""Published checkpoints in the same network: read, switched part by part, compared with their random twins."""

from rc_jax.pretrained.checkpoint import Checkpoint, load
from rc_jax.pretrained.initial import random_like
from rc_jax.pretrained.layouts import Embeddings
from rc_jax.pretrained.packaged import packaged_checkpoint
from rc_jax.pretrained.trace import Trace, Tracer, trace
from rc_jax.pretrained.windows import Windows, cut

__all__ = [
    "Checkpoint",
    "Embeddings",
    "Trace",
    "Tracer",
    "Windows",
    "cut",
    "load",
    "packaged_checkpoint",
    "random_like",
    "trace",
]
