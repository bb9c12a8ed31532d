"""Published checkpoints in the same network: read, switched part by part, compared with randomly initialised copies."""

from rc_jax.pretrained.checkpoint import Checkpoint, load
from rc_jax.pretrained.more import *  # noqa: F403
from rc_jax.pretrained.packaged import packaged_checkpoint
from rc_jax.pretrained.random_init import random_like
from rc_jax.pretrained.tracing import Tracer, trace
from rc_jax.pretrained.windows import cut

__all__ = [
    "Checkpoint",
    "Tracer",
    "cut",
    "load",
    "packaged_checkpoint",
    "random_like",
    "trace",
]
