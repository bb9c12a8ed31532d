"""Kinds of attention weights: each is one record, a `Kind`, of a function and of what is true of it.

| name | weights | |
|---|---|---|
| softmax | e^s / Σ e^s | positive, rows sum to 1 |
| l2 | e^s / √Σ e^(2s) | positive, squares of a row sum to 1 |
| signed | ±e^‖s‖ / Σ e^‖s‖ | sign of s, magnitudes of a row sum to 1 (Lv et al. 2024); 0 where s = 0 |
| softmax_plus_one | e^s / (1 + Σ e^s) | positive, rows sum to less than 1 (Miller 2023, "off by one") |
| softmax_sink | e^s / (e^b + Σ e^s) | the same with a learned logit b of each head (OpenAI 2025, "gpt-oss") |
| sigmoid | 1 / (1 + n e^(−s)) | positive, rows of any sum (Ramapuram et al. 2024: bias −log n); n columns |
| differential | softmax(s) − λ softmax(s′) | rows sum to 1 − λ (Ye et al. 2024); s, s′ of two halves of a head |
| sinkhorn | u_i e^s v_j | positive, rows sum to 1, columns nearly so (Sander et al. 2022) |
| sparsemax | max(s − τ, 0) | rows sum to 1, some weights are 0 (Martins and Astudillo 2016) |
| entmax15 | max(s/2 − τ, 0)² | rows sum to 1, some weights are 0 (Peters, Niculae and Martins 2019) |
| asentmax15 | entmax15((δ + β (log m)^γ) s) | the same, m tokens seen, δ, β, γ of each head (Vasylenko et al. 2025) |
| softpick | max(e^s − 1, 0) / Σ ‖e^s − 1‖ | rows sum to less than 1 or to 0 (Zuhri et al. 2025) |
| relu_squared | max(s, 0)² / Σ max(s, 0)² | non-negative, rows sum to 1; a row without a positive score is 0 |
| relu_squared_mean | max(s, 0)² / m, m seen | non-negative, rows of any sum (Hua et al. 2022, in Su's form) |
| power6 | s⁶ / Σ s⁶ | non-negative, rows sum to 1; a row of zero scores is 0 |
| identity | s / m, m tokens seen | signed, rows of any sum (linear attention without features) |
| linear | s / Σ s, s = φ(q)·φ(k) | non-negative, rows sum to 1 (Katharopoulos et al. 2020, with elu + 1) |
| decay | λ^‖i−j‖ / Σ λ^‖i−j‖ | positive, rows sum to 1, blind to the scores (Sun et al. 2023's decay) |
| gated_decay | Π_{t=j+1..i} λ_t / Σ Π λ_t | positive, rows sum to 1, λ_t = sigmoid(x_t·w + b) (as in Lin et al. 2025) |
| channel_decay | Σ_c φ(q_i)_c φ(k_j)_c λ_c^(i−j) over its row sum | Yang et al. 2023, gates blind to tokens |

Hua et al. 2022 ("Transformer quality in linear time", GAU) square after dividing, max(s/m, 0)²; Su Jianlin
(kexue.fm/archives/8934) divides the square. The first is the second with a `scale` 1/√m times as large. Vasylenko et
al. (arXiv 2506.16640) make β and γ of ASEntmax of each token; here they are one number for each head.
"""

from rc_jax.attention.kinds.decays import DECAYS
from rc_jax.attention.kinds.entmax import ENTMAX
from rc_jax.attention.kinds.powers import POWERS
from rc_jax.attention.kinds.record import Inputs, Kind
from rc_jax.attention.kinds.softmax import SOFTMAX

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*SOFTMAX, *ENTMAX, *POWERS, *DECAYS)}

__all__ = ["KINDS", "Inputs", "Kind"]
