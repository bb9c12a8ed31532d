"""The figure's σ_min is right far below float64's ε, and a zero on the diagonal costs a rank."""

import decimal
import operator

import numpy as np
import scipy.linalg

from experiments.figures.anatomy import causal_rank


def frobenius_of_inverse(matrix):
    """Logarithm of ‖P⁻¹‖ (Frobenius) by forward substitution in 60 digits."""
    total = decimal.Decimal(0)
    with decimal.localcontext(prec=60):
        rows = [[decimal.Decimal(float(value)) for value in row] for row in matrix]
        for start in range(len(rows)):
            column = [1 / rows[start][start]]
            for i in range(start + 1, len(rows)):
                column.append(-sum(map(operator.mul, rows[i][start:i], column), decimal.Decimal(0)) / rows[i][i])
            total += sum((value * value for value in column), decimal.Decimal(0))
        return float(total.ln() / 2)


def test_the_smallest_singular_value_has_all_its_digits():
    """The largest singular value of the inverse lies between its Frobenius norm over √n and that norm."""
    weights = np.tril(np.exp(2 * np.random.default_rng(0).normal(size=(48, 48))))
    matrix = weights / weights.sum(axis=1, keepdims=True)
    norm = frobenius_of_inverse(matrix)
    assert norm > 40  # σ_min is below float64's ε
    assert norm - 0.5 * np.log(48) <= -causal_rank.log_smallest(matrix, (48,))[0] <= norm + 1e-9
    inverse = scipy.linalg.solve_triangular(matrix, np.eye(48), lower=True)  # what the figure takes the norm of
    assert abs(np.log(np.linalg.norm(inverse)) - norm) < 1e-9


def test_a_zero_on_the_diagonal_costs_a_rank():
    matrix = np.tri(12) / np.arange(1, 13)[:, None]
    assert causal_rank.ranks(matrix, (12,))[0, 0] == 1
    matrix[5, 5] = 0
    assert causal_rank.ranks(matrix, (12,))[0, 0] == 11 / 12
