"""Names of `rc_jax.training` that work as the others do, and that the pages do not teach."""

from rc_jax.training.batches import shuffled
from rc_jax.training.objectives import accuracy, cross_entropy
from rc_jax.training.storage import Damaged

__all__ = [
    "Damaged",
    "accuracy",
    "cross_entropy",
    "shuffled",
]
