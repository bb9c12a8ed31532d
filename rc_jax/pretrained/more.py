"""Names of `rc_jax.pretrained` that work as the others do, and that the pages do not teach."""

from rc_jax.pretrained.families import Embeddings
from rc_jax.pretrained.windows import Windows

__all__ = [
    "Embeddings",
    "Windows",
]
