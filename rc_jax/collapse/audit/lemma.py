"""The change of softmax with its logits: the lemma, the published step that misuses it, and the repair."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax.collapse.audit.inequality import Inequality


def _root() -> float:
    """The positive root of e^x = 1 + 2x by Newton's method, from above."""
    x = 1.5
    for _ in range(8):
        x -= (math.expm1(x) - 2 * x) / (math.exp(x) - 2)
    return x


LEMMA_LIMIT: float = _root()
"""The largest D for which e^D ≤ 1 + 2D: −½ − W₋₁(−e^(−1/2)/2) = 1.25643120862617. The lemma is false beyond."""


class _Moved(NamedTuple):
    """P̃ = softmax(Ã), and how P = softmax(Ã + E) differs from it."""

    shared: Float[Array, "row token"]
    log_change: Float[Array, "row token"]  # log P/P̃
    bound: Float[Array, "row one"]  # D


def _moved(base: Array, perturbation: Array) -> _Moved:
    """P̃, log P/P̃ and D for Ã = `base` and E = `perturbation`; log P/P̃ keeps its digits however small E is."""
    shared = jax.nn.softmax(base, axis=-1)
    # log P/P̃ = E − log Σ P̃ e^E, with the least entry of each row of E at 0
    raised = perturbation - jnp.min(perturbation, axis=-1, keepdims=True)
    growth = jnp.log1p(jnp.sum(shared * jnp.expm1(raised), axis=-1, keepdims=True))
    return _Moved(shared, raised - growth, jnp.max(raised, axis=-1, keepdims=True))


def _check_pair(base: Array, perturbation: Array) -> None:
    if base.shape[1] != perturbation.shape[1] or base.shape[0] not in (1, perturbation.shape[0]):
        expected = f"(1 or {perturbation.shape[0]}, {perturbation.shape[1]})"
        raise ValueError(f"`base` must have shape {expected} like `perturbation`, got {arguments.describe(base)}")


def _check_rest(perturbation: Array, rest: Array) -> None:
    if rest.shape[0] != perturbation.shape[1]:
        raise ValueError(
            f"`rest` must have a row for each of {perturbation.shape[1]} tokens, got {arguments.describe(rest)}"
        )


@arguments.guard()
def lemma_lower(base: Float[Array, "same token"], perturbation: Float[Array, "row token"]) -> Inequality:
    """(I − D)P̃ ≤ P, entry by entry, with P = softmax(Ã + E), P̃ = softmax(Ã), D_ii = max_{j,j'} |E_ij − E_ij'|.

    Holds for every D, since 1 − D ≤ e^(−D) (DCL21, appendix).

    Args:
        base: Ã, with one row for all where they agree.
        perturbation: E.

    Returns:
        Both sides; slack is log P − log((1 − D)P̃), infinite where D ≥ 1.

    Example:
        >>> import jax.numpy as jnp
        >>> step = lemma_lower(jnp.zeros((1, 2)), jnp.array([[0.0, 0.5], [0.0, 0.0]]))
        >>> bool((step.slack >= 0).all()), step.left[0].tolist()
        (True, [0.25, 0.25])
    """
    _check_pair(base, perturbation)
    moved = _moved(base, perturbation)
    inside = moved.bound < 1
    log_left = jnp.where(inside, jnp.log1p(-jnp.where(inside, moved.bound, 0)), -jnp.inf)
    left = (1 - moved.bound) * moved.shared
    return Inequality(left, moved.shared * jnp.exp(moved.log_change), moved.log_change - log_left)


@arguments.guard()
def lemma_upper(base: Float[Array, "same token"], perturbation: Float[Array, "row token"]) -> Inequality:
    """P ≤ (I + 2D)P̃, entry by entry, with P = softmax(Ã + E), P̃ = softmax(Ã), D_ii = max_{j,j'} |E_ij − E_ij'|.

    P ≤ e^D P̃ always, and e^D ≤ 1 + 2D up to D = LEMMA_LIMIT = 1.2564… (DCL21, appendix, has 1.256). The limit is sharp:
    beyond it a token of vanishing weight breaks the inequality.

    Args:
        base: Ã, with one row for all where they agree.
        perturbation: E.

    Returns:
        Both sides; slack is log((1 + 2D)P̃) − log P.

    Example:
        >>> import jax.numpy as jnp
        >>> rare = jnp.array([[-14.0, 0.0]])  # a token of weight 1e-6, whose logit is raised by D
        >>> [bool(lemma_upper(rare, jnp.array([[d, 0.0]])).slack.min() >= 0) for d in (1.256, 1.257)]
        [True, False]
    """
    _check_pair(base, perturbation)
    moved = _moved(base, perturbation)
    right = (1 + 2 * moved.bound) * moved.shared
    slack = jnp.log1p(2 * moved.bound) - moved.log_change
    return Inequality(moved.shared * jnp.exp(moved.log_change), right, slack)


@arguments.guard()
def published_step(
    base: Float[Array, "same token"], perturbation: Float[Array, "row token"], rest: Float[Array, "token feature"]
) -> Inequality:
    """PR ≤ (I + 2D)P̃R, entry by entry: the step of the published proof that is false.

    It multiplies the lemma by R, whose columns have entries of both signs. About half of all entries violate it: with R
    of the other sign (R → −R) both sides change sign and the inequality is reversed.

    Args:
        base: Ã, with one row for all where they agree.
        perturbation: E.
        rest: R.

    Returns:
        Both sides; slack is right − left, negative where it is violated.

    Example:
        >>> import jax.numpy as jnp
        >>> rest = jnp.array([[1.0], [-1.0]])
        >>> step = published_step(jnp.zeros((1, 2)), 0.1 * rest @ rest.T, rest)
        >>> [round(value, 3) for value in step.slack[:, 0].tolist()]  # one token obeys, the other does not
        [-0.1, 0.1]
    """
    _check_pair(base, perturbation)
    _check_rest(perturbation, rest)
    moved = _moved(base, perturbation)
    plain = jnp.matmul(moved.shared, rest, precision="highest")
    change = jnp.matmul(moved.shared * jnp.expm1(moved.log_change), rest, precision="highest")
    return Inequality(plain + change, (1 + 2 * moved.bound) * plain, 2 * moved.bound * plain - change)


@arguments.guard()
def repaired_step(
    base: Float[Array, "same token"], perturbation: Float[Array, "row token"], rest: Float[Array, "token feature"]
) -> Inequality:
    """|(P − P̃)R| ≤ 2DP̃|R|, entry by entry, where all D ≤ LEMMA_LIMIT: what the proof needs instead.

    From the lemma −DP̃ ≤ P − P̃ ≤ 2DP̃, so |P − P̃| ≤ 2DP̃, and the triangle inequality does the rest. ‖·‖₁ and ‖·‖_∞ see
    |R| as they see R, so every constant of the theorem survives. This package's own repair.

    Args:
        base: Ã, with one row for all where they agree.
        perturbation: E.
        rest: R.

    Returns:
        Both sides; slack is right − left.

    Example:
        >>> import jax.numpy as jnp
        >>> rest = jnp.array([[1.0], [-1.0]])
        >>> step = repaired_step(jnp.zeros((1, 2)), 0.1 * rest @ rest.T, rest)
        >>> [round(value, 3) for value in step.slack[:, 0].tolist()]
        [0.3, 0.3]
    """
    _check_pair(base, perturbation)
    _check_rest(perturbation, rest)
    moved = _moved(base, perturbation)
    change = jnp.matmul(moved.shared * jnp.expm1(moved.log_change), rest, precision="highest")
    right = 2 * moved.bound * jnp.matmul(moved.shared, jnp.abs(rest), precision="highest")
    return Inequality(jnp.abs(change), right, right - jnp.abs(change))
