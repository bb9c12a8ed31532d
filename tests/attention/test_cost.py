"""Counts of multiplications, operations and longest paths by counting; XLA's own counts: test_layer_kinds."""

import itertools

import numpy as np
import pytest

from rc_jax import attention
from rc_jax.attention.cost import LayerKind


def test_multiplications_by_counting_the_products():
    tokens, d_model, heads = 6, 8, 2
    width = d_model // heads
    products = sum(width for _ in range(heads) for _ in range(tokens**2))  # q·k
    products += sum(tokens for _ in range(heads) for _ in range(tokens * width))  # P V
    assert attention.multiplications(tokens=tokens, d_model=d_model, heads=heads) == products
    projections = sum(d_model for _ in range(4) for _ in range(tokens * d_model))
    got = attention.multiplications(tokens=tokens, d_model=d_model, heads=heads, projections=True)
    assert got == products + projections


def test_the_published_count():
    assert attention.multiplications(tokens=256, d_model=768, heads=12) == 100_663_296


def test_heads_cost_no_multiplications_and_some_softmax():
    """The published layer: one head against twelve differ in softmax only."""
    twelve, one = (attention.operations(tokens=256, d_model=768, heads=heads) for heads in (12, 1))
    assert twelve - one == 11 * 256 * (4 * 256 - 1)
    assert len({attention.multiplications(tokens=256, d_model=768, heads=heads) for heads in (1, 2, 3, 12, 768)}) == 1


def test_longest_paths_by_walking():
    """Windows and kernels as sets of tokens, without any layer: how many to join the ends of a line."""
    for tokens, width in itertools.product((1, 2, 3, 4, 9, 10, 28, 41), (3, 5, 9)):
        spreads: dict[LayerKind, int] = {"convolution": 1, "restricted attention": 1, "dilated convolution": width}
        for kind, spread in spreads.items():
            reach, step, layers = 0, (width - 1) // (1 if spread > 1 else 2), 0
            while reach < tokens - 1 or layers == 0:
                reach, step, layers = reach + step, step * spread, layers + 1
            assert attention.layer_costs(kind, tokens=tokens, d_model=1, width=width).longest_path == layers


def test_dilated_kernels_that_look_both_ways_never_join_all():
    """From the first token to the third is 3 − 1, in the order of the layers: off the line, then back."""
    place = np.arange(9)
    reached = np.eye(9, dtype=int)
    for layer in range(6):
        gap = place[:, None] - place[None, :]
        reached = (np.isin(gap, (-(3**layer), 0, 3**layer)).astype(int) @ reached > 0).astype(int)
    assert not reached[2, 0] and reached[3, 1]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: attention.operations(tokens=4, d_model=6, heads=4), ValueError, "`heads` must divide d_model=6"),
        (lambda: attention.operations(tokens=0, d_model=6), ValueError, "`tokens` must be an integer >= 1, got 0"),
        (lambda: attention.layer_costs("graph", tokens=4, d_model=6), ValueError, "`kind` must be one of 'attention'"),  # pyright: ignore
        (lambda: attention.layer_costs("attention", tokens=4, d_model=6, width=4), ValueError, "`width` must be odd"),
        (
            lambda: attention.layer_costs("attention", tokens=4, d_model=6, width=1),
            ValueError,
            "`width` must be an int",
        ),
        (lambda: attention.layer_costs("attention", tokens=4.0, d_model=6), TypeError, "`tokens` must be an integer"),  # pyright: ignore
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()
