"""Random tasks against Python, SciPy and plain loops: sorting, memorisation, recall and convex hulls."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial
import scipy.stats

from rc_jax.training import tasks


def test_sorted_sequences_against_python(key):
    tokens, labels = (np.asarray(part) for part in tasks.sorting(key, 2000))
    assert tokens.shape == labels.shape == (2000, 8)
    assert all(sorted(given) == answer for given, answer in zip(tokens.tolist(), labels.tolist(), strict=True))
    counts = np.bincount(tokens.ravel(), minlength=10)  # symbols are equally likely and repeat
    assert counts.size == 10
    assert np.all(np.abs(counts - 1600) < 5 * (16_000 * 0.09) ** 0.5)
    assert any(len(set(row)) < 8 for row in tokens.tolist())


@pytest.mark.slow
def test_memorised_labels_are_fair_and_independent_of_tokens(key):
    tokens, labels = (np.asarray(part) for part in tasks.memorisation(key, 400, length=50, symbols=7))
    assert tokens.shape == labels.shape == (400, 50)
    assert set(np.unique(tokens)) == set(range(7))
    assert set(np.unique(labels)) == {0, 1}
    counts = np.bincount(tokens.ravel(), minlength=7)
    assert np.all(np.abs(counts - tokens.size / 7) < 5 * (tokens.size * 6 / 49) ** 0.5)
    for symbol in range(7):
        of_symbol = labels[tokens == symbol]
        assert abs(of_symbol.mean() - 0.5) < 5 * 0.5 / of_symbol.size**0.5


@pytest.mark.slow
def test_pairs_to_recall(key):
    drawn = tasks.recall(key, 4000, pairs=3, keys=4, values=5)
    keys, values = np.asarray(drawn.keys), np.asarray(drawn.values)
    assert keys.shape == values.shape == (4000, 3)
    assert all(len(set(row)) == 3 for row in keys.tolist())
    orders = np.unique(keys @ (16, 4, 1), return_counts=True)[1]
    assert orders.size == 24  # every ordered choice of 3 of 4 keys, none more often than another
    assert scipy.stats.chisquare(orders).pvalue > 1e-4
    assert scipy.stats.chisquare(np.bincount(values.ravel(), minlength=5)).pvalue > 1e-4
    assert float(drawn.place.min()) >= 0 and float(drawn.place.max()) < 1


@pytest.mark.slow
def test_questions_ask_for_each_of_the_last_pairs_equally_often(key):
    drawn = tasks.recall(key, 3000, pairs=7, keys=20)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def ask(length):
        return tasks.recall_question(drawn, length=length)

    rows = np.arange(3000)
    for length in (1, 3, 7):
        asked = ask(length)
        pair = np.asarray(asked.pair)
        counts = np.bincount(pair, minlength=7)
        assert not counts[: 7 - length].any()
        assert length == 1 or scipy.stats.chisquare(counts[7 - length :]).pvalue > 1e-4
        assert (np.asarray(asked.key) == np.asarray(drawn.keys)[rows, pair]).all()
        assert (np.asarray(asked.answer) == np.asarray(drawn.values)[rows, pair]).all()
    whole = tasks.recall_question(drawn)
    assert all(bool((a == b).all()) for a, b in zip(whole, asked, strict=True))


def test_the_farthest_question_still_asks_for_a_pair(key):
    drawn = tasks.recall(key, 1, pairs=5)._replace(place=jnp.asarray([1 - 2.0**-24], jnp.float32))
    assert int(tasks.recall_question(drawn, length=3).pair[0]) == 2
    assert int(tasks.recall_question(drawn._replace(place=jnp.zeros(1))).pair[0]) == 4


def test_recall_mask_against_a_loop():
    for length in (1, 2, 4):
        mask = np.asarray(jax.jit(lambda length: tasks.recall_mask(4, length=length))(length))
        assert (mask == [[4 - length <= j < 4 or i == j < 4 for j in range(5)] for i in range(5)]).all()
    assert (np.asarray(tasks.recall_mask(4)) == mask).all()


def scipy_hull(points):
    on = np.zeros(len(points), bool)
    on[scipy.spatial.ConvexHull(points.astype(np.float64)).vertices] = True
    return on


@pytest.mark.slow
def test_hulls_of_drawn_sets_against_scipy(key):
    points, labels = (np.asarray(part) for part in tasks.convex_hull(key, 400))
    assert points.shape == (400, 10, 2) and labels.shape == (400, 10)
    assert all((label == scipy_hull(where)).all() for where, label in zip(points, labels, strict=True))


@pytest.mark.parametrize("count", [3, 30])
def test_hulls_of_other_numbers_of_points_against_scipy(count):
    for seed in range(20):
        points = np.random.default_rng(seed).standard_normal((count, 2)).astype(np.float32)
        assert (np.asarray(tasks.on_hull(jnp.asarray(points))) == scipy_hull(points)).all()


def test_edges_lines_and_coinciding_points():
    square = jnp.array([[0, 0], [2, 0], [2, 2], [0, 2], [1, 0], [1, 1]], jnp.float32)
    assert tasks.on_hull(square).tolist() == [True, True, True, True, True, False]
    assert tasks.on_hull(jnp.stack([square[:, 0], square[:, 0]], axis=1)).all()
    assert tasks.on_hull(jnp.ones((6, 2))).all()
    assert tasks.on_hull(jnp.ones((1, 2))).all()
    twice = jnp.array([[0, 0], [3, 0], [0, 3], [1, 1], [1, 1], [0, 0]], jnp.float32)
    assert tasks.on_hull(twice).tolist() == [True, True, True, False, False, True]


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_the_size_of_a_set_does_not_matter(size):
    points = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float32)
    assert (tasks.on_hull(jnp.asarray(points * np.float32(size))) == tasks.on_hull(jnp.asarray(points))).all()


def test_shift_moves_whole_sets(key):
    still, labels = tasks.convex_hull(key, 400, shift=0.0)
    moved, same = tasks.convex_hull(key, 400, shift=0.5)
    assert jnp.abs(still).max() <= 1
    move = np.asarray(moved - still)
    np.testing.assert_allclose(move, np.broadcast_to(move[:, :1], move.shape), atol=1e-6)
    error = 0.5 / (2 * move[:, 0].size) ** 0.5
    assert abs(move[:, 0].std() - 0.5) < 5 * error
    assert (labels == same).mean() > 0.999


DRAWN = {
    "sorting": lambda key: tasks.sorting(key, 400)[0],
    "memorisation": lambda key: jnp.stack(tasks.memorisation(key, 400, length=50, symbols=7)),
    "recall": lambda key: tasks.recall(key, 400)[2],
    "convex_hull": lambda key: tasks.convex_hull(key, 400)[0],
    "windows": lambda key: tasks.windows(key, jnp.arange(50), 400, 7)[0],
}


@pytest.mark.parametrize("task", DRAWN)
def test_the_key_decides(task, key):
    draw = DRAWN[task]
    assert (draw(key) == draw(key)).all()
    assert (draw(key) != draw(jax.random.fold_in(key, 1))).any()


BAD = [
    (lambda key: tasks.sorting(0, 5), TypeError, "`key` must be one typed key"),
    (lambda key: tasks.sorting(key, 5, symbols=0), ValueError, "`symbols` must be an integer >= 1, got 0"),
    (lambda key: tasks.memorisation(key, 0), ValueError, "`count` must be an integer >= 1, got 0"),
    (lambda key: tasks.memorisation(key, 2, length=2.5), TypeError, "`length` must be an integer >= 1, got 2.5"),
    (lambda key: tasks.memorisation(key, 2, symbols=0), ValueError, "`symbols` must be an integer >= 1, got 0"),
    (lambda key: tasks.recall(jnp.zeros(2), 1), TypeError, "`key` must be one typed key"),
    (lambda key: tasks.recall(key, 0), ValueError, "`count` must be an integer >= 1, got 0"),
    (lambda key: tasks.recall(key, 1, pairs=9, keys=8), ValueError, "`keys` must be at least the 9 pairs"),
    (lambda key: tasks.recall_question(tuple(tasks.recall(key, 2))), TypeError, "`drawn` must be a Pairs"),
    (
        lambda key: tasks.recall_question(tasks.recall(key, 2, pairs=4), length=5),
        ValueError,
        "`length` must be >= 1 and <= 4, got 5",
    ),
    (lambda key: tasks.recall_question(tasks.recall(key, 2), length=2.5), TypeError, "must be an integer, got 2.5"),
    (lambda key: tasks.recall_mask(4, length=0), ValueError, "`length` must be >= 1 and <= 4, got 0"),
    (lambda key: tasks.recall_mask(4, length=jnp.array([1, 2])), ValueError, "`length` must be one number"),
    (lambda key: tasks.recall_mask(0), ValueError, "`pairs` must be an integer >= 1, got 0"),
    (lambda key: tasks.convex_hull(key, 3, shift=-1.0), ValueError, "`shift` must be >= 0, got -1"),
    (lambda key: tasks.convex_hull(key, 3, points=0), ValueError, "`points` must be an integer >= 1, got 0"),
    (lambda key: tasks.on_hull(jnp.ones((4, 3))), ValueError, "`points` must have 2 coordinates each"),
    (lambda key: tasks.on_hull(jnp.ones((4, 2)).at[0, 0].set(jnp.nan)), ValueError, "`points` must be finite"),
    (lambda key: tasks.on_hull(jnp.ones((4, 2), int)), TypeError, "`points` must be a floating-point array"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("call", "error", "text"), BAD)
def test_bad_input(call, error, text, key):
    with pytest.raises(error, match=text):
        call(key)


def test_a_trigger_asks_for_the_mean_so_far(key):
    """Targets by a loop, markers where they belong, and every place equally likely."""
    drawn = tasks.trigger(key, 2000, tokens=7, features=6)
    tokens, targets, place = (np.asarray(part) for part in drawn)
    assert tokens.shape == targets.shape == (2000, 7, 6)
    for x, y, at in zip(tokens[:50], targets[:50], place[:50], strict=True):
        assert [list(row[[0, 1, -1]]) for row in x] == [
            [float(i == 0), float(i == at), float(i not in (0, at))] for i in range(7)
        ]
        np.testing.assert_allclose(y[at], sum(x[1 : at + 1]) / at, rtol=1e-5, atol=1e-6)
        assert not np.delete(y, at, axis=0).any()
    content = tokens[:, 1:, 2:-1]
    assert not tokens[:, 0, 1:].any() and np.abs(content).max() < 1
    assert abs(content.mean()) < 5 / (3 * content.size) ** 0.5
    assert abs((content**2).mean() - 1 / 3) < 5 * (4 / 45 / content.size) ** 0.5
    assert scipy.stats.chisquare(np.bincount(place, minlength=7)[2:]).pvalue > 1e-4 and place.min() == 2
