"""What the figure of a layer's cost counts of a transformer block, against products of its sizes."""

import numpy as np

from experiments.figures.cost import multihead_cost


def test_parts_of_a_block_have_the_multiplications_of_their_products():
    s, h, a = 16, 24, 3
    expected = [2 * s * s * h, 4 * s * h * h, 2 * s * h * multihead_cost.WIDER * h]
    np.testing.assert_array_equal(multihead_cost.block(s, h, a), expected)


def test_division_and_softmax_of_one_head():
    """XLA may count the first term of each row's sum as an addition."""
    s = 16
    division, softmax = multihead_cost.rest(s)
    assert division == s * s
    assert softmax - s * (2 * s - 1) in (0, s)


def test_the_base_model_has_heads_of_64():
    assert multihead_cost.query_shape(*multihead_cost.BASE) == (512, 64)
