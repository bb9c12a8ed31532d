"""Massive activations: single numbers of a hidden state that are far larger than all the others."""

from typing import Any, NamedTuple

import numpy as np

from rc_jax._numerics import arguments
from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.seen import tokens_of


class Activation(NamedTuple):
    """A massive activation: where it stands, its value, and the median magnitude of its hidden state.

    All places are counted from 0. State l is what layer l reads; the last one is what the last layer gives.
    """

    state: int
    sample: int
    token: int
    feature: int
    value: float
    median: float


@arguments.guard(ratio=arguments.scalar(arguments.positive), least=arguments.scalar(arguments.bounded(0)))
def massive_activations(
    states: Any,
    *,
    mask: Any = None,
    segment_ids: Any = None,
    ratio: float = 1000.0,
    least: float = 100.0,
    most: int = 64,
) -> tuple[Activation, ...]:
    """Activations whose magnitude is above `least`, and at least `ratio` times the median magnitude of their state.

    The median is over the tokens and features of the state of one text, so that padding and the other texts of a
    sample change nothing. `hidden_states` has the norms of tokens in each state, and the largest over their median.

    Args:
        states: as in `hidden_states`: a list with one array (…, n, features) for each state, or one array whose first
            axis counts states.
        mask: as in `hidden_states`: True where there is a token; others are left out, whatever they hold.
        segment_ids: as there: which text each token belongs to, from 1; negative numbers are padding.
        ratio: to the median magnitude; 1000 in the source, "at least or around".
        least: least magnitude; 100 in the source. 0 leaves the ratio alone, as models with other norms ask for.
        most: how many are returned of each state and text, the largest ones.

    Returns:
        Tuples (state, sample, token, feature, value, median), by state and text, the largest first. The token is
        counted from the start of the sample, as in the array.

    Raises:
        TypeError: `states` are traced.
        ValueError: a number of a token is not finite.

    Source: Sun, Chen, Kolter and Liu (2024), arXiv 2402.17762, section 2.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> states = np.random.default_rng(0).standard_normal((3, 8, 16))
        >>> states[1, 0, 5] = -2000
        >>> [found[:5] for found in diagnostics.massive_activations(states)]
        [(1, 0, 0, 5, -2000.0)]
    """
    layers = inputs.layers_of("states", states, ("tokens", "features"), stacked=3)
    found: list[Activation] = []
    texts = tokens_of(layers, mask, segment_ids)
    of_texts = [
        (sample, np.flatnonzero(row == text)) for sample, row in enumerate(texts) for text in np.unique(row[row >= 0])
    ]
    for state in range(len(layers)):
        x = np.asarray(layers[state]).reshape(*texts.shape, -1)
        for sample, at in of_texts:
            tokens = x[sample, at]
            if not np.isfinite(tokens).all():
                raise ValueError(f"`states` must be finite, got other numbers in state {state}, sample {sample}")
            size = np.abs(tokens)
            median = float(np.median(size))
            places = np.argwhere((size > least) & (size >= ratio * median) & (size > 0))
            largest = places[np.argsort(-size[tuple(places.T)], kind="stable")][:most].tolist()
            found += [Activation(state, sample, int(at[t]), f, float(tokens[t, f]), median) for t, f in largest]
    return tuple(found)
