"""Every form run through the layer is what its paper writes; shares and laws of growth on curves with known answers."""

import jax
import numpy as np
import pytest
from scipy import special

from experiments.figures.scale import scale_forms
from experiments.figures.scale.parts import _form_layers as layers
from experiments.figures.scale.parts import _scale_forms as forms
from experiments.ledger import Verdict
from rc_jax import attention

N, D = 12, 6


def shares(powers):
    return powers / powers.sum(axis=-1, keepdims=True)


def layer_normed(x):
    return (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)


def as_published(q, k):
    """Attention weights of each form, as its source writes them, from queries and keys (token, width)."""
    product = q @ k.T
    cosine = product / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(k, axis=1)
    rms = (q / np.sqrt((q**2).mean(1, keepdims=True))) @ (k / np.sqrt((k**2).mean(1, keepdims=True))).T
    return {
        "dot": shares(np.exp(product / np.sqrt(D))),  # Vaswani et al. 2017
        "unit-gain": shares(np.exp(rms / np.sqrt(D))),  # as in Qwen3; nGPT: √d_k times the cosine, the same number
        "layer-norm": shares(np.exp(layer_normed(q) @ layer_normed(k).T / np.sqrt(D))),  # ViT-22B
        "swin": shares(np.exp(cosine * np.exp(min(np.log(10), np.log(100))))),  # min(e^s, 100) at its start
        "swin-clamp": shares(np.exp(cosine * np.exp(min(np.log(1e4), np.log(100))))),
        "log-pairs": shares(np.exp(cosine * np.log2(N**2 - N))),  # Henry et al. 2020
        "log512": shares(np.exp(np.log(N) / np.log(512) * product / np.sqrt(D))),  # Su8823
        "ssmax-learned": shares(N ** (0.43 * product / np.sqrt(D))),  # Nakanishi 2025: powers of n, not of e
        "ssmax-one": shares(float(N) ** (product / np.sqrt(D))),
    }


def test_every_form_is_what_its_source_writes(x64):
    expected = as_published(*np.random.default_rng(0).standard_normal((2, N, D)))
    tokens = np.concatenate(list(np.random.default_rng(0).standard_normal((2, N, D))), axis=1)
    seen = set()
    for run in layers.runs(N, D):
        weights = attention.attention_weights(
            layers.halves(run.spec), jax.numpy.asarray(tokens), run.spec, scale=run.scale
        )
        for head, (name, _) in zip(weights, run.heads, strict=True):
            np.testing.assert_allclose(head, expected[name], rtol=1e-9, err_msg=name)
            seen.add(name)
    assert seen == set(expected)


def test_formulas_are_those_of_the_layers():
    """The factor on scores of variance one that the figure draws as a line, at a length and a width by hand."""
    table = {form.key: (float(form.alpha(np.array([1024.0]), 64)[0]), form.cosine) for form in forms.FORMS}
    by_run = {name: square**0.5 for run in layers.runs(1024, 64) for name, square in run.heads}
    for key in by_run.keys() & table.keys():
        assert table[key][0] == pytest.approx(by_run[key], rel=1e-12)
    assert table["log-pairs"] == (pytest.approx(np.log2(1024 * 1023) / 8), True)
    assert table["yarn"] == (1.0, False)
    assert forms.yarn(16.0) == pytest.approx(1.2772588722239782**2)
    assert table["annealed"][0] == pytest.approx(2.1465, abs=1e-4)


def test_tops_and_other_scales_of_a_parabola():
    where = np.array([[1.7, 3.1], [2.2, 9.0]])
    curves = 0.5 - (np.log(forms.GRID) - np.log(where)[..., None]) ** 2
    place, height = forms.tops(curves)
    np.testing.assert_allclose(place, where, rtol=1e-3)
    np.testing.assert_allclose(height, 0.5, atol=1e-6)
    np.testing.assert_allclose(forms.at_scale(curves, 2 * where), 0.5 - np.log(2) ** 2, atol=1e-9)


def test_the_law_that_made_the_curves_is_found():
    """Optima at 1.4 √log n: that law loses nothing, the others what the range of n makes them lose."""
    n = 2 ** np.arange(4, 18)
    best = 1.4 * np.sqrt(np.log(n))
    curves = -((np.log(forms.GRID) - np.log(best)[:, None]) ** 2)[None, None]
    laws = forms.growth_laws(curves, n, (128, 65536), np.geomspace(0.5, 16, 2001))
    alpha = np.geomspace(0.5, 16, 2001)[laws["law_least"][1, 0, 0].argmax()]  # at the middle of the ends
    assert alpha == pytest.approx(1.4 * np.sqrt(np.log(np.sqrt(128 * 65536))), rel=2e-3)
    assert laws["law_worst"][1, 0, 0] == pytest.approx(1, abs=1e-5)
    half = np.log(np.log(65536) / np.log(128)) / 4  # of the range of log √log n: off at both ends by so much
    np.testing.assert_allclose(laws["law_worst"][[0, 2], 0, 0], np.exp(-(half**2)), rtol=3e-4)


def test_a_shared_query_averages_over_its_length():
    """Of −(log α)²: −E(log α + log τ)² − E log τ, by the moments of log χ²."""
    u, dim = np.log(forms.GRID), 64
    averaged = forms.shared_query(-(u**2)[None], dim)
    mean = (special.digamma(dim / 2) + np.log(2 / dim)) / 2
    square = special.polygamma(1, dim / 2) / 4 + mean**2
    inside = (forms.GRID > 0.5) & (forms.GRID < 32)
    np.testing.assert_allclose(averaged[0, inside], (-(u**2) - 2 * mean * u - square - mean)[inside], atol=3e-3)


def law_row(n, least):
    """The row about laws of growth, of one width and two kinds of scores."""
    row = next(row for row in scale_forms.ROWS if row.key == "forms-law")
    return row.judge({"n": np.array(n), "dims": np.array([64]), "law_worst": np.array(least, float)[:, :, None]})


def test_no_law_is_judged_by_fewer_than_three_lengths():
    best = [[0.8, 0.8], [0.95, 0.7], [1, 1]]
    for lengths in ([32, 2048, 131072], [64, 128, 65536]):
        assert law_row(lengths, best).verdict is Verdict.NOT_RUN
    row = law_row([64, 128, 2048, 65536], best)
    assert row.verdict is Verdict.FAILED
    assert "holds at 3 of 6 points" in row.note
    for spec in scale_forms.PRESETS.values():
        n = 2 ** np.arange(spec.first, 18, spec.step)
        assert ((n >= scale_forms.FIRST) & (n <= scale_forms.LAST)).sum() >= 3
        assert {scale_forms.FIRST, scale_forms.LAST} <= set(n)  # the ends are where a law fails first


def test_largest_weights_of_the_paper_s_own_scores():
    n = np.array([10.0, 1000.0])
    rows = [np.r_[np.full(int(count) - 1, -2.0), 3.0] for count in n]
    expected = [[special.softmax(by * row)[-1] for row, by in zip(rows, factor, strict=True)]
                for factor in (np.ones(2), 0.43 * np.log(n))]  # fmt: skip
    np.testing.assert_allclose(scale_forms.fading(n), expected, rtol=1e-12)
