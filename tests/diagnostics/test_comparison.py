"""Two diagnoses side by side: differences, the heads that changed, and what cannot be compared."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense

N = 16


@pytest.fixture(scope="module")
def pair():
    """Layer 1, head 2 is patched to look at key 7 alone; the states move nearer to each other."""
    weights = np.stack([dense.gaussian(seed, (4, N, N), 1.0) for seed in range(3)]).astype(np.float32)
    patched = weights.copy()
    patched[1, 2] = np.eye(N, dtype=np.float32)[7]
    states = np.random.default_rng(0).standard_normal((4, N, 8)).astype(np.float32)
    met = states.copy()
    met[-1] = 1 + 0.1 * states[-1]
    return tuple(
        diagnostics.attention(p) | diagnostics.hidden_states(x) for p, x in ((weights, states), (patched, met))
    )


def test_differences_are_those_of_the_arrays(pair):
    a, b = pair
    comparison = diagnostics.compare(a, b)
    for name in a.measures:
        np.testing.assert_array_equal(comparison[name], b[name] - a[name])
    with pytest.raises(KeyError, match="no measure 'entrpy' in both; there are sparsity"):
        comparison["entrpy"]


def test_the_patched_head_is_named_with_its_keys(pair):
    comparison = diagnostics.compare(*pair, names=("before", "after"))
    assert {each[:2] for each in comparison.changes()} == {(1, 2)}
    largest = {each.measure: each for each in comparison.changes()}
    assert largest["relative_entropy"].after == 0 and largest["largest_weight"].after == 1
    said = comparison.sentences()
    assert said[0].startswith("Layer 1, head 2: ") and "7, its top key, " in said[0] and "→ 1" in said[0]
    old, new = (each["relative_residual"][-1] for each in pair)
    assert said[-1] == f"The share of X that differs between tokens, in the last state: {old:.2g} → {new:.2g}."
    text = str(comparison)
    assert text.startswith("before → after: 3 layers of 4 heads and 4 hidden states")
    assert "Hidden states" in text and "Layer 1, head 2" in text
    row = next(line for line in text.splitlines() if line.split()[:1] == ["1"])
    assert f"{np.median(pair[0]['sparsity'][1]):.2g} → {np.median(pair[1]['sparsity'][1]):.2g}" in row


def test_a_sink_that_moves_is_a_change():
    weights = np.full((1, 4, N, N), 0.2 / (N - 1), np.float32)
    weights[..., 3] = 0.8
    moved = np.roll(weights, 2, axis=-1)
    (first, *_) = diagnostics.compare(*map(diagnostics.attention, (weights, moved))).sentences()
    assert "weight on keys 3 → 5, its top key, 0.8 → 0.8" in first


def test_new_sinks_are_counted():
    weights = np.stack([dense.gaussian(seed, (4, N, N), 1.0) for seed in range(2)]).astype(np.float32)
    sinking = weights.copy()
    sinking[:, :3] *= 0.2
    sinking[:, :3, :, 0] += 0.8
    comparison = diagnostics.compare(*map(diagnostics.attention, (weights, sinking)))
    assert "Heads with a sink on token 0: 0 → 6 of 8." in comparison.sentences()
    assert "0 → 3 of 4" in str(comparison)


def test_nothing_and_many(pair):
    assert diagnostics.compare(pair[0], pair[0]).sentences() == ("Nothing changed by more than a tenth.",)
    weights = np.stack([dense.gaussian(seed, (6, N, N), 1.0) for seed in range(2)]).astype(np.float32)
    sharp = np.broadcast_to(np.eye(N, dtype=np.float32), weights.shape)
    said = diagnostics.compare(*map(diagnostics.attention, (weights, sharp))).sentences()
    assert sum(each.startswith("Layer ") for each in said) == 8
    assert "4 more heads change by more than 0.1: `changes()` names them." in said


def test_what_else_differs_is_noted(pair):
    longer = diagnostics.attention(np.stack([dense.gaussian(seed, (4, 24, 24), 1.0) for seed in range(3)]))
    comparison = diagnostics.compare(pair[0], longer, names=("old", "new"))
    notes, table = comparison.notes, comparison.table()
    assert table.index("They differ in tokens") < table.index("Rows of attention")
    assert "They differ in tokens: 16 and 24." in notes
    assert (
        "Only old has relative_residual, residual_rate, cosine, absolute_cosine, token_rank, token_norm, norm_ratio."
        in notes
    )


def test_the_figure_has_both(pair):
    drawing = diagnostics.compare(*pair, names=("old", "new")).figure()
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["old", "new"]
    panel = next(ax for ax in drawing.axes if ax.get_title(loc="left") == "entropy / log n")
    for line, diagnosis in zip(panel.lines, pair, strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.median(diagnosis["relative_entropy"], axis=1))
    plt.close("all")


@pytest.mark.usefixtures("as_installed")
def test_other_architectures_are_refused(pair):
    fewer = diagnostics.attention(np.full((2, 4, N, N), 1 / N, np.float32))
    with pytest.raises(ValueError, match=r"the same layers, got \(0, 1, 2\) and \(0, 1\)"):
        diagnostics.compare(pair[0], fewer)
    with pytest.raises(ValueError, match="the same heads, got 4 and 2"):
        diagnostics.compare(fewer, diagnostics.attention(np.full((2, 2, N, N), 1 / N, np.float32)))
    two, three = (
        diagnostics.hidden_states(np.eye(8, dtype=np.float32)[None] * np.ones((k, 1, 1), "f4")) for k in (2, 3)
    )
    with pytest.raises(ValueError, match=r"relative_residual of one shape, got \(2,\) and \(3,\)"):
        diagnostics.compare(two, three)
    with pytest.raises(TypeError, match="`b` must be a Diagnosis, such as `attention` gives, got int"):
        diagnostics.compare(two, 3)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("names", [("model", "model"), ("before", "change"), ("a", "b", "c"), ("a",), "ab", (1, 2)])
def test_names_are_two_different_ones(pair, names):
    """Columns are known by them, and one of two equal names would be lost."""
    error = ValueError if isinstance(names, tuple) and isinstance(names[0], str) else TypeError
    with pytest.raises(error, match='`names` must be two different strings, neither of them "change"'):
        diagnostics.compare(*pair, names=names)
    assert diagnostics.compare(*pair, names=["a", "b"]).to_csv() == diagnostics.compare(*pair).to_csv()
