"""What is printed, stored, drawn and said."""

import json
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

from rc_jax import diagnostics
from rc_jax.diagnostics import Diagnosis, reference
from rc_jax.diagnostics.report import sentences
from tests.diagnostics import dense

N = 16


def sinking(strength, heads=4, layers=2):
    """Causal heads whose first key has so much added to its logit."""
    logits = np.random.default_rng(0).standard_normal((layers, heads, N, N))
    logits[..., 0] += np.asarray(strength)
    return dense.softmax(np.where(np.tri(N, dtype=bool), logits, -np.inf)).astype(np.float32)


@pytest.fixture(scope="module")
def diagnosis():
    states = np.random.default_rng(1).standard_normal((3, N, 8)).astype(np.float32)
    return diagnostics.attention(sinking(4.0)) | diagnostics.hidden_states(states)


def test_json_keeps_everything(diagnosis):
    again = Diagnosis.from_dict(json.loads(diagnosis.to_json(indent=1)))
    assert set(again.measures) == set(diagnosis.measures)
    for name, values in diagnosis.measures.items():
        assert np.array_equal(again[name], values, equal_nan=True), name
    assert again.to_json() == diagnosis.to_json() and str(again) == str(diagnosis)
    with pytest.raises(ValueError, match="`stored` must have the fields"):
        Diagnosis.from_dict({"tokens": 3})


@pytest.mark.parametrize("value, stored", [(np.nan, None), (np.inf, "Infinity"), (-np.inf, "-Infinity")])
def test_json_keeps_what_is_not_finite(value, stored):
    made = Diagnosis({"scale_ratio": np.array([[value, 1.5]])}, tokens=3, layers=1, heads=2, numbers=(0,))
    record = json.loads(made.to_json())
    assert record["measures"]["scale_ratio"] == [[stored, 1.5]]
    np.testing.assert_array_equal(Diagnosis.from_dict(record)["scale_ratio"], [[value, 1.5]])


def test_a_stored_diagnosis_has_the_same_medians_where_a_scale_is_infinite():
    """A head of one key each has α = ∞, and the median of four heads counts it."""
    single = np.zeros((1, 4, 4, 4), np.float32)
    single[0] = 0.25
    single[0, 1:3] = np.eye(4)
    diagnosis = diagnostics.attention(single)
    assert np.isposinf(diagnosis["entropy_scale"][0, 1])
    again = Diagnosis.from_dict(json.loads(diagnosis.to_json()))
    assert str(diagnostics.compare(diagnosis, again)) == str(diagnostics.compare(diagnosis, diagnosis))


def test_the_table_has_a_row_a_layer_and_what_to_compare_with(diagnosis):
    text = str(diagnosis)
    lines = text.splitlines()
    assert lines[0] == "2 layers of 4 heads and 3 hidden states: 16 tokens, causal"
    rows = next(index for index, line in enumerate(lines) if line.split()[:2] == ["layer", "S"])
    assert [line.split()[0] for line in lines[rows + 1 : rows + 5]] == ["0", "1", "SmolLM2-135M,", "random"]
    middle = np.median(diagnosis["largest_weight"][0])
    assert f"{middle:.2g}" in lines[rows + 1]
    keys = next(line for line in lines if line.split()[:2] == ["layer", "key"])
    assert "sinks" in keys and "4/4" in lines[lines.index(keys) + 1]
    assert "α* = " in text.replace("\n", " ") and "Hidden states: each" in text
    assert "head 3" in diagnosis.table(heads=True, compare=False) and "head 3" not in text
    assert max(map(len, lines)) <= 130


@pytest.mark.usefixtures("as_installed")
def test_thresholds_of_numpy_are_numbers_of_json():
    for threshold in (0.25, np.float32(0.25), 1):
        sinks = diagnostics.attention(sinking(1.0), threshold=threshold)
        assert json.loads(sinks.to_json())["threshold"] == threshold


def test_no_point_is_cut_off():
    """128 singular values are 1: the stable rank is 128."""
    assert diagnostics.attention(np.eye(16, dtype=np.float32)[None]).figure().axes  # no warning, where α is infinite
    panels = diagnostics.attention(-np.eye(128, dtype=np.float32)[None], normalised=False).figure().axes
    panel = next(ax for ax in panels if ax.get_title(loc="left") == "stable rank of P")
    low, high = panel.get_ylim()
    assert low < 128 < high


def test_measures_are_found_by_name(diagnosis):
    assert diagnosis["entropy"].shape == (2, 4) and diagnosis["cosine"].shape == (3,)
    with pytest.raises(KeyError, match="no measure 'entrpy'; there are sparsity"):
        diagnosis["entrpy"]


def test_only_diagnoses_of_the_same_tokens_are_joined(diagnosis):
    shorter = diagnostics.hidden_states(np.eye(3, dtype=np.float32)[None])
    with pytest.raises(ValueError, match="same number of tokens, got 16 and 3"):
        diagnostics.attention(sinking(0.0)) | shorter
    with pytest.raises(ValueError, match="both diagnoses have absolute_cosine, cosine, norm_ratio, relative_residual"):
        diagnosis | diagnostics.hidden_states(np.ones((1, N, 2), np.float32) * np.arange(N, dtype=np.float32)[:, None])
    with pytest.raises(ValueError, match=r"or set two of the same side by side with rc_jax\.diagnostics\.compare"):
        diagnosis | diagnosis
    with pytest.raises(TypeError):
        diagnosis | 3


def test_random_weights_are_ordinary():
    assert diagnostics.attention(sinking(0.0)).unusual() == ()


EVEN = np.tri(N, dtype=np.float32) / np.arange(1, N + 1, dtype=np.float32)[:, None]
COPY = np.eye(N, dtype=np.float32)


@pytest.mark.parametrize("row, feature", [(EVEN, "mix almost evenly"), (COPY, "copy one token")], ids=["even", "copy"])
def test_what_stands_out_is_said(row, feature):
    said = diagnostics.attention(np.broadcast_to(row, (2, 4, N, N))).unusual()
    sentence = next(each for each in said if feature in each)
    assert sentence.startswith("Layers 0–1: 8 of 8 heads") and "random: none" in sentence


def test_a_sink_elsewhere_is_compared_with_the_packaged_encoder():
    """Half of the layers have it in all heads. In the packaged encoder the first token is the sink of most heads."""
    logits = np.random.default_rng(0).standard_normal((2, 4, N, N))
    logits[1, ..., 5] += 6
    said = diagnostics.attention(dense.softmax(logits).astype(np.float32)).unusual()
    sentence = next(each for each in said if "later token" in each)
    assert sentence.startswith("Layer 1: 4 of 4 heads put more than 0.3 of their weight on one later token")
    assert "MiniLM-L6, n = 32: none" in sentence and "random: none" in sentence
    first = np.roll(logits, -5, axis=-1)
    assert not any("token 0" in each for each in diagnostics.attention(dense.softmax(first).astype("f4")).unusual())


def test_states_that_meet_are_told():
    apart = np.random.default_rng(2).standard_normal((N, 8)).astype(np.float32)
    states = [1 + np.float32(0.3**layer) * apart for layer in range(6)]
    said = diagnostics.hidden_states(states).unusual()
    assert any(each.startswith("In hidden state 5 tokens differ by 0.00") for each in said)
    assert any("falls by 1" in each or "falls by 0.9" in each or "falls by 1." in each for each in said), said


def test_the_stored_models_are_complete():
    stored = json.loads(reference.FILE.read_text(encoding="utf-8"))
    assert [model["name"] for model in stored["models"]] == ["MiniLM-L6", "SmolLM2-135M"]
    for model in stored["models"]:
        several = [Diagnosis.from_dict(each) for each in model["at"]]
        assert [each.tokens for each in several] == [32, 128, 512]
        for each in several:
            assert each["sink_weight"].shape == (each.layers, each.heads)
            assert each["cosine"].shape == (each.layers + 1,) and np.isfinite(each["sparsity"]).all()
    assert all(each.causal for each in several)


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_the_figure_has_a_panel_for_each_measure(diagnosis, style):
    with plt.style.context(style):
        drawing = diagnosis.figure()
    titles = [ax.get_title(loc="left") for ax in drawing.axes if ax.get_title(loc="left")]
    assert len(titles) == 6 and "weight on the first key" in titles and "mean cosine of tokens" in titles
    alone = diagnostics.hidden_states(np.eye(4, dtype=np.float32)[None])
    assert len(alone.figure().axes) == 2


def test_one_saturated_head_is_named():
    """One of twelve heads on single keys, in layer 1 of 3: its place, measures and the others' median."""
    weights = np.stack([dense.gaussian(seed, (4, N, N), 1.0) for seed in range(3)])
    weights[1, 2] = dense.gaussian(9, (N, N), 1e4)
    diagnosis = diagnostics.attention(weights.astype(np.float32))
    found = diagnosis.outliers()
    assert {(each.layer, each.head) for each in found} == {(1, 2)}
    entropy = next(each for each in found if each.measure == "relative_entropy")
    assert entropy.value < 1e-3 and np.isclose(entropy.median, np.median(diagnosis["relative_entropy"]))
    said = [each for each in diagnosis.unusual() if each.startswith("Layer 1, head 2 is far from the other heads")]
    assert len(said) == 1 and said[0].split() and "Layer 1, head 2 is far" in str(diagnosis)


def test_the_key_of_an_outlying_head_is_named():
    weights = np.stack([dense.gaussian(seed, (4, N, N), 1.0) for seed in range(2)])
    weights[1, 3] = 0.1 / (N - 1)
    weights[1, 3, :, 7] = 0.9
    diagnosis = diagnostics.attention(weights.astype(np.float32))
    found = {each.measure: each for each in diagnosis.outliers()}
    assert {each[:2] for each in found.values()} == {(1, 3)}
    assert found["strongest_weight"].key == 7 and found["relative_entropy"].key is None
    assert "weight on key 7, its top key, 0.9 (" in str(diagnosis.unusual())


def test_alike_heads_have_no_outliers_and_many_are_counted():
    weights = np.stack([dense.gaussian(seed, (8, N, N), 1.0) for seed in range(8)]).astype(np.float32)
    assert diagnostics.attention(weights).outliers() == ()
    weights[:, 0] = np.eye(N)[np.random.default_rng(0).integers(0, N, N)]
    weights[:3, 1] = np.eye(N)[np.random.default_rng(1).integers(0, N, N)]
    told = diagnostics.attention(weights).unusual()
    assert sum("is far from the other heads" in each for each in told) == 8
    assert "3 more heads are far from the others: `outliers()` names them." in told


def test_the_table_says_where_the_sink_is():
    weights = np.full((1, 4, N, N), 0.4 / (N - 1))
    weights[..., 5] = 0.6
    weights[0, 3] = 1 / N
    weights[0, 3, :, 2] += 0.1
    text = str(diagnostics.attention(weights.astype(np.float32), normalised=False))
    assert "at key" in text and "5 in 3/4" in text


def test_one_layer_of_one_head_is_singular():
    one = diagnostics.attention([np.full((1, 3, 3), 1 / 3)])
    assert "1 layer of 1 head: 3 tokens" in str(one)


def test_rows_for_other_programs(diagnosis, tmp_path):
    """A row for each layer and head, with pandas and without it; a diagnosis is a mapping of its measures."""
    pd = pytest.importorskip("pandas")
    assert list(diagnosis) == list(diagnosis.keys()) == list(diagnosis.measures)
    assert all(dict(diagnosis)[name] is diagnosis[name] for name in diagnosis)
    frame = diagnosis.to_frame()
    assert frame.shape[0] == diagnosis.layers * diagnosis.heads and "cosine" not in frame
    row = frame[(frame["layer"] == 1) & (frame["head"] == 2)]
    assert row["entropy"].item() == diagnosis["entropy"][1, 2]
    states = diagnosis.to_frame(of="states")
    assert states["cosine"].tolist() == diagnosis["cosine"].tolist()
    diagnosis.to_csv(tmp_path / "heads.csv")
    read = pd.read_csv(tmp_path / "heads.csv")
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)
    assert (tmp_path / "heads.csv").read_text() == diagnosis.to_csv()
    with pytest.raises(ValueError, match="`of` must be one of those that have measures, 'heads' and 'states', got 'x'"):
        diagnosis.to_frame(of="x")
    both = diagnostics.compare(diagnosis, diagnosis, names=("old", "new")).to_frame()
    assert (both["entropy change"] == 0).all() and both["entropy new"].tolist() == frame["entropy"].tolist()


def test_pandas_is_asked_for_by_name(diagnosis, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="`to_frame` needs pandas"):
        diagnosis.to_frame()


def test_notebooks_show_tables(diagnosis):
    shown = diagnosis._repr_html_()
    assert shown.count("<table>") == 3 and "<td>SmolLM2-135M" in shown and "<script" not in shown
    assert "→" in diagnostics.compare(diagnosis, diagnosis)._repr_html_()


def test_a_map_has_a_field_for_each_head(diagnosis):
    drawing = diagnosis.figure(kind="map")
    images = [ax.images[0] for ax in drawing.axes if ax.images]
    assert all(image.get_array().shape == (diagnosis.layers, diagnosis.heads) for image in images)
    with pytest.raises(ValueError, match="`kind` must be one of 'layers', 'map', got 'x'"):
        diagnosis.figure(kind="x")


def test_outlying_points_carry_their_names_and_noise_is_no_change():
    weights = np.full((2, 4, 8, 8), 1 / 8, np.float32)
    weights[1, 2] = np.eye(8)
    drawing = diagnostics.attention(weights).figure()
    assert "1.2" in [text.get_text() for ax in drawing.axes for text in ax.texts]
    noisy = np.full((2, 4, 8, 8), 1 / 8, np.float32)
    noisy[0, 0, :, 0] += 1e-4
    noisy /= noisy.sum(-1, keepdims=True)
    a, b = (diagnostics.attention(each) for each in (np.full_like(noisy, 1 / 8), noisy))
    for drawing in (diagnostics.compare(a, b).figure(), b.figure(kind="map"), b.figure()):
        for ax in drawing.axes:
            low, high = ax.images[0].get_clim() if ax.images else ax.get_ylim()
            relative = type(ax.images[0].norm).__name__ == "LogNorm" if ax.images else ax.get_yscale() == "log"
            span = np.log(high / low) if relative else high - low
            assert span >= 0.04 or not ax.get_title(loc="left")


def test_no_field_and_no_logarithmic_axis_makes_noise_look_like_change():
    """Heads whose rank differs by 1e-4 of it; and no field has a color for a weight above 1 or below 0."""
    close = Diagnosis({"stable_rank": 5 + 5e-4 * np.eye(4)}, 64, layers=4, heads=4, numbers=(0, 1, 2, 3))
    low, high = close.figure(kind="map").axes[0].images[0].get_clim()
    assert high / low > 1.04
    panel = close.figure().axes[0]
    low, high = panel.get_ylim()
    assert panel.get_yscale() == "log" and high / low > 1.04
    even = diagnostics.attention(np.full((2, 4, 8, 8), 1 / 8, np.float32)).figure(kind="map")
    for ax in even.axes:
        if ax.images:
            low, high = ax.images[0].get_clim()
            assert low >= 0 and (high <= 1 or "α" in ax.get_title(loc="left"))


def test_names_of_points_that_lie_together_are_one():
    weights = np.full((2, 8, 16, 16), 1 / 16, np.float32)
    weights[1, 2:5] = np.eye(16)
    weights[0, [1, 3]] = np.eye(16)
    weights[1, 6] = weights[1, 6] * 0.6 + 0.4 * np.eye(16)
    named = {text.get_text() for ax in diagnostics.attention(weights).figure().axes for text in ax.texts}
    assert {"1.2–4", "0.1, 0.3", "1.6"} <= named and "1.2" not in named


def test_sinks_are_told_by_text():
    """Two texts of four with the sink on token 0, one on token 2, one without; tokens count from its start."""
    weights = np.full((4, 2, 12, 12), 1 / 12, np.float32)
    for sample, token, share in ((0, 0, 0.9), (1, 0, 0.7), (3, 2, 0.8)):
        weights[sample] = (1 - share) / 11
        weights[sample, :, :, token] = share
    weights[3, 1] = 1 / 12
    told = [
        "Samples 0–1: token 0 is the sink of 2 of 2 heads, with 0.8 of the weight at the median.",
        "Sample 3: token 2 is the sink of 1 of 2 heads, with 0.8 of the weight at the median.",
        "The sink is the first token in 2 of 3 texts that have one.",
    ]
    diagnosis = diagnostics.attention([weights])
    assert list(diagnosis.sinks()) == told
    assert "Sinks\n" + "\n".join(told) in str(diagnosis) and told[0] in diagnosis._repr_html_()
    padded = np.zeros((4, 2, 15, 15), np.float32)
    padded[:, :, 3:, 3:], padded[:, :, :3] = weights, 1 / 15
    real = np.broadcast_to(np.where(np.arange(15) < 3, -1, 1), (4, 15))
    assert list(diagnostics.attention([padded], segment_ids=real).sinks()) == told
    packed = np.zeros((1, 2, 24, 24), np.float32)
    packed[..., :12, :12], packed[..., 12:, 12:] = weights[0], weights[3]
    ids = np.repeat([[1, 2]], 12, axis=1)
    assert diagnostics.attention([packed], segment_ids=ids).sinks()[1].startswith("Text 1: token 2 is the sink of 1 of")
    assert diagnostics.attention(np.full((1, 2, 8, 8), 1 / 8, np.float32)).sinks() == ()


def test_heads_that_see_nothing_are_shown_as_such():
    mask = np.ones((1, 2, 8, 8), bool)
    mask[0, 1] = False
    diagnosis = diagnostics.attention([np.full((1, 2, 8, 8), 1 / 8, np.float32)], mask=mask)
    assert "Layer 0, head 1: no query sees two keys, so that measures are NaN." in diagnosis.notes
    assert "nan" not in str(diagnosis) and diagnosis.figure(kind="map") is not None
    hidden = mask.copy()
    hidden[0, 0, 3] = False
    assert diagnostics.attention([np.full((1, 2, 8, 8), 1 / 8, np.float32)], mask=hidden).notes[0] == (
        "Layer 0: 1 query sees nothing and is left out of all means."
    )


@pytest.mark.parametrize("causal", [False, True])
def test_entropy_collapse_of_a_model_is_judged_by_random_keys(causal):
    """No packaged model falls below the threshold; rows of one key do, and the sentence says what to compare with."""
    mask = np.tri(64, dtype=bool) if causal else np.ones((64, 64), bool)
    for alpha, said in ((1.0, False), (40.0, True)):
        logits = np.where(mask, alpha * np.random.default_rng(0).standard_normal((2, 4, 64, 64)), -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        diagnosis = diagnostics.attention((weights / weights.sum(-1, keepdims=True)).astype(np.float32))
        found = [each for each in diagnosis.unusual() if "Entropy has collapsed" in each]
        assert bool(found) is said
        if not said:
            measured, expected = sentences.entropy_share(diagnosis)
            assert abs(measured - expected) < 0.01
    assert "that 64 random keys give, and below 0.25 of it" in found[0]
    for name, several in reference._models().items():
        for each in several:
            assert np.divide(*sentences.entropy_share(each)) > 1.7 * sentences.COLLAPSE, name
