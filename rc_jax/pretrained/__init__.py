"""Published checkpoints in the same network: read, switched part by part, compared with randomly initialised copies."""

from rc_jax.pretrained.checkpoint import Checkpoint, load, stated_layout
from rc_jax.pretrained.families import Embeddings
from rc_jax.pretrained.packaged import PACKAGED, PackagedKind, packaged_checkpoint
from rc_jax.pretrained.random_init import random_like
from rc_jax.pretrained.tracing import Tracer, trace
from rc_jax.pretrained.windows import Windows, cut

__all__ = [
    "PACKAGED",
    "Checkpoint",
    "Embeddings",
    "PackagedKind",
    "Tracer",
    "Windows",
    "cut",
    "load",
    "packaged_checkpoint",
    "random_like",
    "stated_layout",
    "trace",
]
