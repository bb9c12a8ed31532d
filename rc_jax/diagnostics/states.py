"""Diagnosis of hidden states: how far apart the tokens are before and after each layer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rc_jax import collapse
from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.seen import tokens_of

ORDER = ("relative_residual", "residual_rate", "cosine", "absolute_cosine", "token_rank", "token_norm", "norm_ratio")
BLOCK = 1024  # tokens whose cosines with all others are in memory


def hidden_states(states: Any, *, mask: Any = None, segment_ids: Any = None) -> Diagnosis:
    r"""How far apart the tokens of hidden states are, before and after each layer.

    Measures of each state X of a text, means over texts; x_i are its n rows and x̄ is their mean:

        relative_residual  ‖X − 1x̄ᵀ‖_F/‖X‖_F: 0 where all tokens are equal
        residual_rate      log of this ratio after the layer less log before it, in nats; NaN of the first state
        cosine             mean over pairs i ≠ j of x_i·x_j/(‖x_i‖‖x_j‖); tokens that are 0 count as orthogonal
        absolute_cosine    the same mean of the magnitudes |x_i·x_j|/(‖x_i‖‖x_j‖)
        token_rank         stable rank ‖X‖_F²/σ₁(X)²
        token_norm         median of ‖x_i‖ over tokens
        norm_ratio         largest ‖x_i‖ over that median; tokens with massive activations, and sinks, make it large

    The residual of states that agree to rounding is rounding; `rc_jax.collapse.log_residuals` sees further.
    Half precision is computed in float32.

    Args:
        states: A list with one array (…, n, features) for each state, the one before the first layer first; or one
            array whose first axis counts states, with at least three axes. Axes before the tokens are samples. Arrays
            of JAX, NumPy or PyTorch.
        mask: True where there is a token, of a shape that broadcasts to (…, n); others are left out.
        segment_ids: as in `attention`: which text each token belongs to, from 1; negative numbers are padding.

    Returns:
        A `Diagnosis` with measures of shape (state,).

    Raises:
        TypeError: `states` or `mask` are traced.
        ValueError: a number is not finite, or a sample has fewer than two tokens.

    Source: Dong, Cordonnier and Loukas (2021), section 2, for the residual.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> apart = np.array([[1.0, 1.0], [1.0, -1.0]], np.float32)
        >>> diagnosis = diagnostics.hidden_states([apart, apart * np.float32([1, 0.1])])
        >>> print(diagnosis["relative_residual"].round(3), diagnosis["cosine"].round(3))
        [0.707 0.1  ] [0.   0.98]
    """
    layers = inputs.layers_of("states", states, ("tokens", "features"), stacked=3)
    n, features = layers.shape[-2:]
    texts = tokens_of(layers, mask, segment_ids)
    # One text of each sample after another; those with fewer than two tokens say nothing of distances.
    inside = [texts == text for text in range(int(texts.max(initial=0)) + 1)]
    counted = np.stack([each.sum(-1) >= 2 for each in inside])
    if not counted.any():
        most = max(int(each.sum(-1).max()) for each in inside)
        raise ValueError(f"`states` must have at least two tokens in some text, got {most}")
    short = sum(int((each.any(-1) & ~enough).sum()) for each, enough in zip(inside, counted, strict=True))
    # A state at a time; the rate is a difference of logarithms of neighbours.
    by_state: list[dict[str, np.ndarray]] = []
    for index in range(len(layers)):
        x = layers[index].reshape(-1, n, features)
        parts = [jax.tree.map(np.asarray, measures_of(x, jnp.asarray(each))) for each in inside]
        by_state.append({name: np.stack([each[name] for each in parts])[counted] for name in parts[0]})
        if not by_state[-1]["finite"].all():
            sample = int(np.argwhere(counted)[np.flatnonzero(~by_state[-1]["finite"])[0]][1])
            raise ValueError(f"`states` must be finite, got other numbers in state {index}, sample {sample}")
    stacked: dict[str, np.ndarray] = {name: np.stack([each[name] for each in by_state]) for name in by_state[0]}
    notes = [f"States came in {layers.dtype} and are computed in float32."] if layers.dtype.itemsize < 4 else []
    if short:
        notes.append(f"Hidden states of {short} texts of a single token are left out.")
    return Diagnosis(
        {name: value.mean(1) for name, value in with_rates(stacked).items()},
        tokens=n,
        samples=int(counted.sum()),
        notes=tuple(notes),
    )


def with_rates(stacked: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The measures (state, sample) with the rate of the residual at each layer."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(stacked["relative_residual"])
        rate = np.diff(logs, axis=0, prepend=np.full_like(logs[:1], np.nan))
    return {name: {**stacked, "residual_rate": rate}[name] for name in ORDER}


@jax.jit
def measures_of(x: Array, there: Array) -> dict[str, Array]:
    """The measures of each sample, and whether all its numbers are finite."""
    kept = there[..., None]
    count = jnp.sum(there, axis=-1).astype(x.dtype)
    x = jnp.where(kept, x, 0)
    largest = jnp.max(jnp.abs(x), axis=(-1, -2), keepdims=True)
    # Relative to the largest number, so that squares stay in range. XLA multiplies by its reciprocal, which would be
    # subnormal, and so 0, above 8.5e37.
    factor = jnp.where(largest > 1, 2.0**-8, 1).astype(x.dtype)
    unit = (x * factor) / jnp.where(largest > 0, largest * factor, 1)

    def residual(tokens: Array) -> Array:
        # The mean twice: the first has a rounding error of the size of the tokens.
        for _ in range(2):
            tokens = tokens - jnp.sum(tokens, axis=-2, keepdims=True) / count[:, None, None]
            tokens = jnp.where(kept, tokens, 0)
        return tokens

    def squares(tokens: Array) -> Array:
        return jnp.sum(jnp.square(tokens), axis=(-1, -2))

    # With directions u_i, Σ_{i≠j} u_i·u_j = n(Σ‖u‖² − ‖res(U)‖²) − Σ‖u‖², where no digit is lost near cosine 1.
    # Each token relative to its own largest number first, so that a far smaller one than others has a direction too.
    own = jnp.max(jnp.abs(unit), axis=-1, keepdims=True)
    direction = unit / jnp.where(own > 0, own, 1)
    norm = jnp.linalg.norm(direction, axis=-1, keepdims=True)
    direction = direction / jnp.where(norm > 0, norm, 1)
    # Norms in range, whatever their size; padding comes behind all tokens.
    norms = jnp.linalg.norm(unit, axis=-1) * jnp.where(largest > 0, largest, 1)[..., 0]
    ordered = jnp.sort(jnp.where(there, norms, jnp.inf), axis=-1)
    middle = jnp.stack([(jnp.sum(there, axis=-1) - 1) // 2, jnp.sum(there, axis=-1) // 2], axis=-1)
    median = jnp.mean(jnp.take_along_axis(ordered, jnp.maximum(middle, 0), axis=-1), axis=-1)
    whole, apart = squares(direction), squares(residual(direction))
    total = squares(unit)
    return {
        "relative_residual": jnp.sqrt(squares(residual(unit)) / jnp.where(total > 0, total, 1)),
        "cosine": ((count - 1) * whole - count * apart) / (count * (count - 1)),
        "absolute_cosine": _magnitudes(direction) / (count * (count - 1)),
        "token_rank": jax.vmap(collapse.stable_rank)(unit),
        "token_norm": median,
        "norm_ratio": jnp.max(norms, axis=-1) / jnp.where(median > 0, median, 1),
        "finite": jnp.isfinite(jnp.sum(unit, axis=(-1, -2))),
    }


def _magnitudes(direction: Array) -> Array:
    """Σ_{i≠j} |u_i·u_j| of each sample, over blocks of rows."""
    n = direction.shape[-2]
    size = min(n, BLOCK)

    def of_sample(u: Array) -> Array:
        blocks = jnp.pad(u, [(0, -n % size), (0, 0)]).reshape(-1, size, u.shape[-1])

        def of_block(args: tuple[Array, Array]) -> Array:
            at, rows = args
            products = jnp.abs(jnp.matmul(rows, u.T, precision="highest"))
            return jnp.sum(jnp.where(at * size + jnp.arange(size)[:, None] == jnp.arange(n)[None], 0, products))

        return jnp.sum(jax.lax.map(of_block, (jnp.arange(len(blocks)), blocks)))

    return jax.lax.map(of_sample, direction)
