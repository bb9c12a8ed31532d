"""Results are whole or absent, and never trusted when damaged."""

import hashlib
import json

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.lib import figure
from experiments.run import store


def test_round_trip(tmp_path):
    data = {"x": np.arange(3.0), "label": np.array(["a", "b"]), "narrow": jnp.ones(2, jnp.bfloat16), "n": 4}
    store.save(tmp_path, "r", data, {"seconds": 1.5})
    stored = store.load(tmp_path, "r")
    assert stored is not None
    assert stored.provenance["seconds"] == 1.5
    assert list(stored.data) == list(data)
    np.testing.assert_array_equal(stored.data["x"], data["x"])
    assert stored.data["narrow"].dtype == np.float32
    assert {path.name for path in tmp_path.iterdir()} == {"r.npz", "r.json"}
    assert store.load(tmp_path, "absent") is None


def test_half_a_result_counts_as_none(tmp_path):
    store.save(tmp_path, "r", {"x": np.ones(2)}, {})
    (tmp_path / "r.json").unlink()
    assert store.load(tmp_path, "r") is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "json", "not a dict", "sealed rubbish"])
def test_damage_is_noticed(tmp_path, damage):
    store.save(tmp_path, "r", {"x": np.arange(1000.0)}, {})
    arrays, about = tmp_path / "r.npz", tmp_path / "r.json"
    content = arrays.read_bytes()
    if damage == "truncate":
        arrays.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        arrays.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    elif damage == "empty":
        arrays.write_bytes(b"")
    elif damage == "json":
        about.write_text(about.read_text()[:-5])
    elif damage == "not a dict":
        about.write_text("[1]")
    else:
        arrays.write_bytes(b"PK rubbish")
        about.write_text(json.dumps({"sha256": hashlib.sha256(b"PK rubbish").hexdigest()}))
    with pytest.raises(store.Damaged):
        store.load(tmp_path, "r")


def test_arrays_that_unpack_to_more_than_a_result_has_are_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "MOST_BYTES", 10_000)
    store.save(tmp_path, "small", {"x": np.zeros(1000)}, {})
    assert store.load(tmp_path, "small").data["x"].size == 1000
    store.save(tmp_path, "large", {"x": np.zeros(2000)}, {})
    assert (tmp_path / "large.npz").stat().st_size < 1000
    with pytest.raises(store.Damaged, match=r"unpacks to 16\d\d\d bytes, and must to at most 10000"):
        store.load(tmp_path, "large")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    store.write(path, "old")
    with pytest.raises(TypeError):
        store.write(path, None)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_tidy_removes_what_a_killed_run_left(tmp_path):
    partial, result = tmp_path / ".a.npz.1.partial", tmp_path / "a.npz"
    partial.touch()
    result.touch()
    store.tidy(tmp_path)
    assert not partial.exists()
    assert result.exists()


FORGED = ["{}", '"text"', "null", "[" * 100_000]
FORGED += ['{"seconds": NaN}', '{"seconds": Infinity}', '{"seconds": 1' + 400 * "0" + "}", '{"seconds": true}']
FORGED += ['{"date": null}', '{"spec": {"x": NaN}}', '{"spec": "x"}', '{"date": 5}', '{"device": [1]}']


@pytest.mark.parametrize("forged", FORGED)
def test_what_no_writer_makes_is_damage(tmp_path, forged):
    store.save(tmp_path, "r", {"x": np.ones(2)}, {})
    seal = json.loads((tmp_path / "r.json").read_text())["sha256"]
    sealed = forged.replace("{", f'{{"sha256": "{seal}", ', 1) if forged.startswith('{"') else forged
    (tmp_path / "r.json").write_text(sealed)
    with pytest.raises(store.Damaged):
        store.load(tmp_path, "r")


@pytest.mark.parametrize("bad", [[1, 2], {"x": np.array([object()])}, {"x": None}])
def test_compute_must_return_arrays(bad):
    with pytest.raises(TypeError, match="`compute` must return"):
        store.numbers(bad)


def test_nonfinite_counts():
    data = {"a": np.array([1.0, np.nan, -np.inf]), "b": np.arange(2), "c": np.ones(2), "d": np.array(["nan"])}
    assert store.nonfinite(data) == ["a: 2 of 3 numbers are not finite"]


def test_spec_checks_its_fields():
    for seed in (-1, True, 1.5):
        with pytest.raises(ValueError, match="`seed` must be an integer >= 0"):
            figure.Spec(seed=seed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`dtype` must be 'float32' or 'float64'"):
        figure.Spec(dtype="float16")
