"""Training: small networks of the same layers, for many seeds and settings at once, with everything on disk.

`train` is the loop, `Transformer` the model, `tasks` what it is trained on. Imports flax, optax and orbax.
"""

from rc_jax.training import tasks
from rc_jax.training.model import ModelSpec, Transformer
from rc_jax.training.more import *  # noqa: F403
from rc_jax.training.trainer import Training, train

__all__ = [
    "ModelSpec",
    "Training",
    "Transformer",
    "tasks",
    "train",
]
