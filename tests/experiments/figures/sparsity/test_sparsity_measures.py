"""The theorem on three axioms: where it ends, and that the figure's trials would find a measure that jumps."""

import itertools
import pathlib
from fractions import Fraction

import jax.numpy as jnp
import numpy as np

from experiments.figures.sparsity import sparsity_measures
from rc_jax import sparsity


def jumping(row):
    """The Gini index, plus 1 where all positive entries are equal and more than 3/5 of the row: exact."""
    n, ordered = len(row), sorted(row)
    gini = Fraction(sum((2 * i - n - 1) * each for i, each in enumerate(ordered, 1)), n * sum(row))
    positive = [each for each in row if each > 0]
    return gini + (len(set(positive)) == 1 and Fraction(len(positive), n) > Fraction(3, 5))


def test_parts_of_less_than_half_the_difference_are_not_enough_for_babies():
    rows = [row for n in (2, 3, 4) for row in itertools.product(range(4), repeat=n)]
    rows = [row for row in rows if len(set(row)) > 1 and sum(each > 0 for each in row) > 1]
    for row in rows:
        assert jumping(row) == jumping([7 * each for each in row]) == jumping(row + row) == jumping(row[::-1])
        for rich, poor in itertools.permutations(range(len(row)), 2):
            for part in (Fraction(1, 100), Fraction(1, 2), Fraction(99, 100)):  # of half the difference
                moved = [Fraction(each) for each in row]
                given = part * (row[rich] - row[poor]) / 2
                moved[rich], moved[poor] = moved[rich] - given, moved[poor] + given
                assert given <= 0 or jumping(moved) < jumping(row)
    assert jumping((1, 1, 0)) == Fraction(4, 3) and jumping((1, 1, 0, 0)) == Fraction(1, 2)  # babies is broken
    assert jumping((1, 1, 1)) > jumping((2, 1, 0))  # by a part of half the difference: the theorem excludes it


def test_the_trials_find_a_measure_that_jumps(monkeypatch, x64):
    def gini_with_jump(a):
        full = (a == jnp.max(a, axis=-1, keepdims=True)) | (a == 0)
        return sparsity.gini(a) + (jnp.all(full, axis=-1) & (jnp.mean(a > 0, axis=-1) > 0.6)).astype(a.dtype)

    both = (sparsity.gini, gini_with_jump)
    monkeypatch.setattr(sparsity_measures, "_all", lambda a: jnp.stack([measure(a) for measure in both]))
    margin = sparsity_measures._axioms(np.random.default_rng(0), 4000)
    robin_hood = sparsity_measures.AXIOMS.index("Robin Hood")
    assert (margin[0] >= 0).all()
    assert margin[1, robin_hood] < 0
    assert margin[1, sparsity_measures.AXIOMS.index("cloning")] >= 0


def test_half_of_all_rows_have_ties_and_a_quarter_give_half(monkeypatch, x64):
    seen = []
    monkeypatch.setattr(sparsity_measures, "_all", lambda a: seen.append(np.asarray(a)) or jnp.ones((1, len(a))))
    sparsity_measures._axioms(np.random.default_rng(0), 400)
    order, robbed = seen[:2]
    assert (np.diff(order, axis=1) == 0).any(axis=1).mean() >= 0.5
    np.testing.assert_allclose(robbed[::4, 0], robbed[::4, -1])
    assert (robbed[1::4, 0] < robbed[1::4, -1]).all()


def test_the_trials_give_the_table_of_the_page(x64):
    """✓ and ✗ of docs/sparsity_measures.md, whose Rényi row stands for three orders."""
    page = (pathlib.Path(__file__).parents[4] / "docs" / "sparsity_measures.md").read_text("utf-8")
    table = page.split("| measure | 1 | 2 |")[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell == "✓" for cell in map(str.strip, line.split("|")[2:8])] for line in table]
    names = [line.split("|")[1].strip() for line in table]
    renyi = names.index(r"$\log n-H_q$")
    of_page = dict(zip(names, rows, strict=True))
    wanted = [of_page["$1-S$"], of_page["Gini"], of_page["Hoyer"], of_page[r"$1-H/\log n$"], *3 * [rows[renyi]],
              of_page[r"$\kappa_4$"], of_page[r"$\lVert a\rVert_2/\lVert a\rVert_1$"]]  # fmt: skip
    margin = sparsity_measures._axioms(np.random.default_rng(0), 20_000)
    np.testing.assert_array_equal(margin >= 0, wanted)
