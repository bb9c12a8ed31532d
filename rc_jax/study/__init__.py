"""Studies: of one kind of attention weights, beside softmax, and of an architecture before it is trained.

`study.kind` measures with public functions of `collapse`, `scale`, `sparsity` and `attention`, and says of each number
how it was got. `study.architecture` follows tokens, rows and gradients through random initialisations.
"""

from rc_jax.study.initialisation import Architecture, architecture
from rc_jax.study.measures import kind
from rc_jax.study.report import Measure, Study, draw, sentences, table

__all__ = ["Architecture", "Measure", "Study", "architecture", "draw", "kind", "sentences", "table"]
