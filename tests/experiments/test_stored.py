"""Every figure judges and draws its stored smoke result; a sample that was left out supports nothing."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.text import Text

from experiments.figures._samples import draw
from experiments.figures.anatomy import score_symmetry
from experiments.ledger import Verdict, judged, pages, record
from experiments.lib import figure, style
from tests.experiments import smoke_data

NAMES = figure.names()
PIXELS = 46 * 16  # the width of a page, 46 em
LEDGER = record.read(pages.DOCS)


def rows(module, data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {claim.key: claim for claim in judged(module.ROWS, data)}


@pytest.mark.parametrize("name", NAMES)
def test_rows(name):
    module, data = figure.load(name), smoke_data.load(name)
    claims = judged(module.ROWS, data)
    assert name in LEDGER, "docs/ledger.md lacks a figure: see docs/experiments.md, A new figure"
    keys, known = [claim.key for claim in claims], [claim.key for claim in LEDGER[name].claims]
    assert len(set(keys)) == len(keys)
    assert keys == known, "docs/ledger.md has other rows than the figure: see docs/experiments.md, A new figure"


@pytest.mark.parametrize(
    ("name", "key", "row"),
    [
        ("collapse_depth", "attention_left_out", "collapse-cube"),
        ("score_symmetry", "left_out", "symmetry-random"),
    ],
)
def test_a_sample_that_an_ensemble_left_out_leaves_the_row_not_measured(name, key, row):
    module, data = figure.load(name), smoke_data.load(name)
    assert rows(module, data)[row].verdict is not Verdict.NOT_RUN
    broken = data | {key: data[key] + (np.arange(data[key].size) == 0).reshape(data[key].shape)}
    assert rows(module, broken)[row].verdict is Verdict.NOT_RUN


def test_a_measured_zero_is_not_the_law():
    data = smoke_data.load("score_symmetry")
    data |= {"parts": np.ones_like(data["parts"]), "parts_error": np.full_like(data["parts"], 0.01)}
    assert rows(score_symmetry, data)["symmetry-random"].verdict is Verdict.HELD
    assert rows(score_symmetry, data | {"parts": 0 * data["parts"]})["symmetry-random"].verdict is not Verdict.HELD


def test_means_of_all_samples_are_not_known_where_one_was_left_out():
    def sample(key):
        draw = jax.random.uniform(key)
        return {"good": draw, "bad": jnp.where(draw < 0.5, jnp.nan, draw)}

    drawn = draw(sample, jax.random.key(0), 16)
    bad, good = drawn.samples["bad"], drawn.samples["good"]
    finite = bad[np.isfinite(bad)]
    assert 0 < drawn.left_out["bad"] == 16 - finite.size < 16
    for statistic in (drawn.mean, drawn.standard_error, drawn.minimum, drawn.maximum):
        assert np.isnan(statistic["bad"])
    np.testing.assert_allclose(drawn.quantile([0.2, 0.5])["bad"], np.quantile(finite, [0.2, 0.5]), rtol=1e-14)
    assert drawn.left_out["good"] == 0
    np.testing.assert_allclose(drawn.mean["good"], good.mean(), rtol=1e-14)
    np.testing.assert_allclose(drawn.standard_error["good"], good.std(ddof=1) / 4, rtol=1e-14)
    np.testing.assert_allclose(drawn.quantile([0.2])["good"], np.quantile(good, [0.2]), rtol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_plot(name):
    with style.theme("light"):
        drawn = figure.load(name).plot(smoke_data.load(name))
    shown = [ax for ax in drawn.axes if ax.axison]
    assert shown and all(ax.has_data() for ax in shown)
    # Letters of ten pixels at least, as a page shows them.
    pixels = PIXELS / drawn.get_figwidth()  # to the inch
    texts = [each for each in drawn.findobj(Text) if each.get_visible() and each.get_text().strip()]
    assert min(each.get_fontsize() for each in texts) * pixels / 72 > 10
