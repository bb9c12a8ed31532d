"""The figure of real models on made-up checkpoints of two families: its numbers against NumPy, claims and names."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.command import main
from experiments.figures.models import real_models
from experiments.ledger import Verdict, judged, record
from experiments.lib import checkpoints, sentences
from experiments.lib.figure import Unavailable
from experiments.run import store
from rc_jax import collapse, network, pretrained
from tests.pretrained import families, made_up

WORDS = ("rank", "collapse", "attention")
TEXTS = tuple(" ".join(WORDS[(start + step * step // 2) % 3] for step in range(12)) for start in range(4))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A BERT and a GPT-2, small enough that their softmax is not saturated."""
    place = tmp_path_factory.mktemp("checkpoints")
    made = []
    for name in ("bert", "gpt2"):
        values = {key: (0.3 * value).astype(np.float32) for key, value in families.tensors(name).items()}
        made.append(str(made_up.write(place / f"my {name}", families.CONFIGS[name], values, tokenizer=True)))
    return tuple(made)


@pytest.fixture(scope="module")
def made(folders, tmp_path_factory):
    """What `python -m experiments real_models --checkpoint … --checkpoint …` leaves: its page's folder and numbers."""
    out = tmp_path_factory.mktemp("out")
    words = ["real_models", "--preset", "smoke", "--out", str(out)]
    words += [word for folder in folders for word in ("--checkpoint", folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "docstrings", lambda: TEXTS)
        assert main(words) == 0
    (page,) = out.iterdir()
    (arrays,) = page.glob("data/*.npz")
    stored = store.load(arrays.parent, arrays.stem)
    assert stored is not None
    return page, stored.data


def by_hand(checkpoint, ids, *, skip, mlp, norm):
    """‖res(X^l)‖/‖X^l‖ of one text, layer by layer, by NumPy."""
    stack = dataclasses.replace(checkpoint.spec, skip=skip, mlp=checkpoint.spec.mlp if mlp else None)
    states = np.asarray(network.hidden_states(checkpoint.params, checkpoint.embed(jnp.asarray(ids)), stack))
    return [norm(state - state.mean(axis=0)) / norm(state) for state in states]


def composite(x):
    return np.sqrt(np.abs(x).sum(axis=0).max() * np.abs(x).sum(axis=1).max())


@pytest.mark.slow
def test_relative_residuals_of_both_families(x64, folders, made):
    data = made[1]
    assert data["names"].tolist() == ["my bert", "my gpt2"]
    assert data["causal"].tolist() == [False, True]
    for index, folder in enumerate(folders):
        checkpoint = pretrained.load(folder, dtype="float64")
        depth = checkpoint.spec.depth
        assert data[f"{index}_trained_relative"].shape == data[f"{index}_initial_relative"].shape == (4, 4, depth + 1)
        ids = np.array([2, *checkpoint.tokenizer.encode(TEXTS[1], add_special_tokens=False).ids[:6], 3])
        for position in ((0, 2), (1, 3))[index]:  # each switch in one of the two: compiling is what takes time here
            wanted = by_hand(checkpoint, ids, skip=position in (1, 3), mlp=position in (2, 3), norm=composite)
            np.testing.assert_allclose(data[f"{index}_trained_relative"][1, position], wanted, rtol=1e-9, atol=1e-13)
        apart = data[f"{index}_trained_relative"] - data[f"{index}_initial_relative"]
        assert np.abs(apart).max() > 0.01


@pytest.mark.slow
def test_a_bidirectional_checkpoint_has_its_claims(made):
    claims = record.read(made[0])["real_models"].claims
    ends = ("attention-collapses", "mlp-collapses", "mlp-slows", "skip-prevents", "stops", "skip-obstructs")
    assert [claim.key for claim in claims] == [f"trained-{end}" for end in ends]
    assert Verdict.NOT_RUN not in {claim.verdict for claim in claims}
    assert all("here my bert" in claim.hypotheses for claim in claims)  # they say nothing of a causal model


def test_claims_follow_the_numbers():
    """A model that collapses with its skips and not without them differs everywhere; a causal one decides no row."""
    layers = np.array([0.8, 0.5, 1e-3])
    kept = np.array([0.8, 0.8, 0.8])

    def data(alone, mlp, skip, full, *, causal=False):
        runs = np.stack([alone, skip, mlp, full])[None]
        return {"0_trained_relative": runs, "0_initial_relative": runs, "names": np.array(["x"])} | {
            "floors": np.array([1e-14]), "causal": np.array([causal]), "default": np.array(True),
        }  # fmt: skip

    def verdicts(*curves, **options):
        return [claim.verdict for claim in judged(real_models.ROWS, data(*curves, **options))]

    assert verdicts(layers, 2 * layers, kept, kept) == [Verdict.AGREES] * 6
    assert verdicts(layers, kept, kept, kept)[-1] is Verdict.AGREES  # with MLPs that stop it too
    second_hand = [Verdict.UNDECIDED] * 2
    differing = verdicts(kept, 0.9 * kept, layers, layers)
    assert differing == [*second_hand, Verdict.DIFFERS, Verdict.UNDECIDED, *[Verdict.DIFFERS] * 2]
    # The theorem is about models whose tokens see each other.
    assert set(verdicts(kept, 0.9 * kept, layers, layers, causal=True)) == {Verdict.NOT_RUN}


@pytest.mark.slow
def test_below_the_rounding_floor(x64, folders):
    """The exact logarithm is that of the Frobenius norms, and the figure draws it where rounding ends the curve."""
    bert = pretrained.load(folders[0], dtype="float64")
    ids = jnp.asarray([[2, 4, 5, 6, 5, 3], [2, 6, 6, 4, 5, 3]])
    curves = real_models._measure(bert, ids, ("attention",))
    for text, logs in zip(ids, curves["exact_attention"], strict=True):
        wanted = by_hand(bert, text, skip=False, mlp=False, norm=np.linalg.norm)
        np.testing.assert_allclose(logs[:3], np.log(wanted[:3]), rtol=0, atol=1e-5)
        assert logs[3] < -60  # three times as far down, where rounding ends at -36
    deep = np.log(10) * np.array([[0.0, -5, -40, -120]])
    data = {f"0_{variant}_relative": np.full((1, 4, 4), 0.5) for variant in real_models.VARIANTS}
    data["0_trained_relative"][0, 0] = [0.5, 1e-5, 1e-15, 1e-15]
    about = {"names": np.array(["x"]), "floors": np.array([1e-14]), "causal": np.array([False])}
    drawing = real_models.plot(data | about | {"0_trained_exact_attention": deep})
    (panel,) = drawing.axes
    assert "beyond rounding (cancellation-free)" in legend_of(drawing)
    below = [line for line in panel.lines if np.max(line.get_ydata(), initial=0) > 100]
    assert [list(line.get_xdata()) for line in below] == [[1, 2, 3]]
    np.testing.assert_allclose(below[0].get_ydata(), [5, 40, 120])


def legend_of(drawing):
    return [text.get_text() for text in drawing.legends[0].get_texts()]


def refuse(error):
    def refused(*_):
        raise error("`spec` must have weights='softmax'")

    return refused


def test_a_stack_without_exact_arithmetic_has_no_exact_curve_and_a_mistake_is_an_error(folders, monkeypatch):
    monkeypatch.setattr(real_models, "log_residuals", refuse(collapse.NotCovered))
    monkeypatch.setattr(real_models, "_plain", lambda params, x, spec: {"relative": jnp.zeros((1, 2)), "size": None})
    trained, ids = pretrained.load(folders[1]), jnp.asarray([[4, 5]])
    assert list(real_models._measure(trained, ids, ("attention", "mlp"))) == ["relative"]
    monkeypatch.setattr(real_models, "log_residuals", refuse(ValueError))
    with pytest.raises(ValueError, match="weights='softmax'"):
        real_models._measure(trained, ids, ("attention",))


def test_panels_are_two_in_a_row():
    variants = [f"{index}_{variant}_relative" for index in range(4) for variant in ("trained", "initial")]
    data = {name: np.full((1, 4, 3), 0.5) for name in variants}
    names = [f"model {index}" for index in range(4)]
    data |= {"names": np.array(names), "floors": np.full(4, 1e-14), "causal": np.array([False, True, False, True])}
    drawing = real_models.plot(data)
    assert len(legend_of(drawing)) == 7  # four switches, two variants, the floor; nothing lies below it
    titles = [panel.get_title(loc="left") or panel.get_title() for panel in drawing.axes]
    assert titles == ["model 0", "model 1, causal", "model 2", "model 3, causal"]
    assert [panel.get_subplotspec().rowspan.start for panel in drawing.axes] == [0, 0, 1, 1]
    assert len({panel.get_ylim() for panel in drawing.axes}) == 1  # one axis, so that panels can be compared


def test_a_model_for_shorter_texts_is_refused_before_any_is_measured(folders, tmp_path, monkeypatch):
    short = {**made_up.CONFIG, "max_position_embeddings": 7}
    values = made_up.tensors(short)
    place = str(made_up.write(tmp_path / "short", short, values, tokenizer=True))
    monkeypatch.setattr(real_models, "_compare", lambda *_: pytest.fail("measured"))
    spec = dataclasses.replace(real_models.PRESETS["smoke"], dtype="float32", checkpoints=(folders[0], place))
    with pytest.raises(Unavailable, match="short takes at most 7 tokens, 8 wanted"):
        real_models.compute(spec)


def test_a_checkpoint_that_cannot_be_read_is_an_error_with_its_name(folders, tmp_path):
    broken = made_up.write(tmp_path / "broken", tokenizer=True)
    (broken / "config.json").write_text('{"model_type": "xlnet"}')
    checkpoints.check([str(broken)])
    with pytest.raises(ValueError, match=r"`model_type` must be one of .* in '.*broken/config.json', got 'xlnet'"):
        real_models.compute(
            dataclasses.replace(real_models.PRESETS["smoke"], dtype="float32", checkpoints=(str(broken),))
        )
    assert jax.config.jax_enable_x64 is False
