"""The three questions, asked of one kind of attention weights, beside softmax.

`study.kind` measures with public functions of `collapse`, `scale`, `sparsity` and `attention`, and says of each number
how it was got.
"""

from rc_jax.study.measures import kind
from rc_jax.study.report import Measure, Study, draw, sentences, table

__all__ = ["Measure", "Study", "draw", "kind", "sentences", "table"]
