"""Training: small networks of the same layers, for many seeds and settings at once, with everything on disk.

`train` is the loop, `Transformer` the model, `tasks` what it is trained on. Imports flax, optax and orbax.
"""

from rc_jax.training import tasks
from rc_jax.training.batches import shuffled
from rc_jax.training.model import ModelSpec, Transformer
from rc_jax.training.objectives import accuracy, cross_entropy
from rc_jax.training.storage import Damaged
from rc_jax.training.trainer import Training, train

__all__ = [
    "Damaged",
    "ModelSpec",
    "Training",
    "Transformer",
    "accuracy",
    "cross_entropy",
    "shuffled",
    "tasks",
    "train",
]
