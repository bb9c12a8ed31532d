"""Tasks to train networks on: each is a pure function of a key, or a data set that comes with a package."""

from rc_jax.training.tasks._characters import characters, windows
from rc_jax.training.tasks._circle import circle, roll_out
from rc_jax.training.tasks._convex_hull import convex_hull, on_hull
from rc_jax.training.tasks._digits import digits
from rc_jax.training.tasks._recall import Pairs, recall, recall_mask, recall_question
from rc_jax.training.tasks._sequences import memorisation, sorting
from rc_jax.training.tasks._trigger import Triggered, trigger

__all__ = [
    "Pairs",
    "Triggered",
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
    "trigger",
    "windows",
]
