"""The proofs of collapse, step by step and executable: each inequality as a function that returns both its sides.

Every function returns an `Inequality`: `left` ≤ `right` is what is claimed, `slack` ≥ 0 says that it holds. All are
pure and can be mapped over thousands of cases. docs/proof.md has the proofs and says which function is which step.

The published proof (DCL21, section 2 and appendix), with its gap and the repair:

    lemma_lower, lemma_upper   softmax moved by E:  (I − D)P̃ ≤ P ≤ (I + 2D)P̃,  where all D ≤ LEMMA_LIMIT
    published_step             PR ≤ (I + 2D)P̃R:  false, for R has negative entries
    repaired_step              |(P − P̃)R| ≤ 2DP̃|R|
    norm_step                  ‖2DP̃|R|‖_{1,∞} ≤ 2√(‖D1‖₁‖D1‖_∞) ‖R‖_{1,∞}
    gamma_cap                  γ ≤ √(Σ_i max_a |R_ia| / ‖R‖₁) ≤ √min(n, d)
    layer, depth               the bounds themselves, on a network

The proof of the tanh theorem (own: the application to attention; its parts are Cohen & Fausti 2023, Dobrushin 1956):

    score_oscillation          rows of logits differ by an oscillation of at most ‖A‖₂ diam(X)²
    total_variation            TV(softmax a, softmax b) ≤ tanh(osc(a − b)/4)
    mixture                    ‖Σ_j (p − q)_j x_j‖₂ ≤ TV(p, q) diam(X)
    tanh_layer, tanh_depth     the bounds themselves, on a network
"""

from rc_jax.collapse.audit import ascent
from rc_jax.collapse.audit.inequality import Inequality
from rc_jax.collapse.audit.lemma import LEMMA_LIMIT, lemma_lower, lemma_upper, published_step, repaired_step
from rc_jax.collapse.audit.norms import Split, depth, gamma_cap, layer, norm_step, split
from rc_jax.collapse.audit.tanh import mixture, score_oscillation, tanh_depth, tanh_layer, total_variation

__all__ = [
    "LEMMA_LIMIT",
    "Inequality",
    "Split",
    "ascent",
    "depth",
    "gamma_cap",
    "layer",
    "lemma_lower",
    "lemma_upper",
    "mixture",
    "norm_step",
    "published_step",
    "repaired_step",
    "score_oscillation",
    "split",
    "tanh_depth",
    "tanh_layer",
    "total_variation",
]
