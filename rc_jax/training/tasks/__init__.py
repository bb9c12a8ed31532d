"""What networks are trained on: every task is a pure function of a key, or a data set that comes with a package."""

from rc_jax.training.tasks.characters import characters, windows
from rc_jax.training.tasks.circle import circle, roll_out
from rc_jax.training.tasks.convex_hull import convex_hull, on_hull
from rc_jax.training.tasks.digits import digits
from rc_jax.training.tasks.memorisation import memorisation
from rc_jax.training.tasks.recall import recall, recall_mask, recall_question
from rc_jax.training.tasks.sorting import sorting

__all__ = [
    "characters",
    "circle",
    "convex_hull",
    "digits",
    "memorisation",
    "on_hull",
    "recall",
    "recall_mask",
    "recall_question",
    "roll_out",
    "sorting",
    "windows",
]
