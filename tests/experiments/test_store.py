"""Results are named by all that decides them, whole or absent, and never trusted when damaged."""

import dataclasses
import hashlib
import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import figure, store


@dataclasses.dataclass(frozen=True)
class Inner:
    width: int = 4


@dataclasses.dataclass(frozen=True)
class Spec(figure.Spec):
    depth: int = 3
    scale: float = 1.0
    sizes: tuple[int, ...] = (1, 2)
    kind: str = "dot"
    inner: Inner = Inner()
    limit: float | None = None
    flag: bool = False


CHANGES = {
    "seed": 1,
    "dtype": "float64",
    "depth": 4,
    "scale": 1.0 + 2**-52,
    "sizes": (2, 1),
    "kind": "cosine",
    "inner": Inner(5),
    "limit": float("inf"),
    "flag": True,
}


def test_every_field_the_version_and_the_name_change_the_hash():
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Spec)}
    specs = [Spec(), *(dataclasses.replace(Spec(), **{key: value}) for key, value in CHANGES.items())]
    hashes = [store.fingerprint("a", spec) for spec in specs]
    hashes += [store.fingerprint("b", Spec()), store.fingerprint("a", Spec(), version="9.9.9")]
    assert len(set(hashes)) == len(hashes)
    assert store.fingerprint("a", Spec()) == store.fingerprint("a", Spec())


def test_a_spec_whose_text_is_not_stable_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Loose(figure.Spec):
        thing: object = dataclasses.field(default_factory=object)

    with pytest.raises(TypeError, match="a spec must hold numbers, text, tuples and dataclasses only"):
        store.fingerprint("a", Loose())


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


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    store.write(path, "old")
    with pytest.raises(TypeError):
        store.write(path, None)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_tidy_removes_only_what_nobody_writes_any_more(tmp_path, monkeypatch):
    partial, result = tmp_path / ".a.npz.1.partial", tmp_path / "a.npz"
    partial.touch()
    result.touch()
    store.tidy(tmp_path)
    assert partial.exists()
    monkeypatch.setattr(store, "FORGET_AFTER", -1.0)
    store.tidy(tmp_path)
    assert not partial.exists()
    assert result.exists()


@pytest.mark.parametrize("bad", [[1, 2], {"x": np.array([object()])}, {"x": None}])
def test_compute_must_return_arrays(bad):
    with pytest.raises(TypeError, match="`compute` must return"):
        store.numbers(bad)


def test_nonfinite_counts():
    data = {"a": np.array([1.0, np.nan, -np.inf]), "b": np.arange(2), "c": np.ones(2), "d": np.array(["nan"])}
    assert store.nonfinite(data) == ["a: 2 of 3 numbers are not finite"]


def test_code_state_follows_what_is_computed_and_not_how_it_is_drawn(tmp_path):
    path = tmp_path / "f.py"

    def state(text):
        path.write_text(text)
        return store.code_state(SimpleNamespace(__file__=str(path)))

    base = state("ABOUT = 1\ndef compute(s):\n    return 1\ndef plot(d):\n    return 1\n")
    assert state("ABOUT = 2\ndef compute(s):  # why\n    return 1\n\ndef plot(d):\n    return 2\n") == base
    assert state("ABOUT = 1\ndef compute(s):\n    return 2\ndef plot(d):\n    return 1\n") != base
    assert store.code_state(SimpleNamespace()) != base
    drawn = state("from experiments import style\n")
    assert [path.name for path in store._helpers(str(path))] == []
    assert state("from experiments import record, style\nfrom experiments.figure import About\n") != drawn
    assert [path.name for path in store._helpers(str(path))] == ["record.py"]
    state("from experiments.figures import _sparsity_samples\nfrom experiments.sentences import chunks\n")
    assert [path.name for path in store._helpers(str(path))] == ["_sparsity_samples.py", "sentences.py"]


def test_spec_checks_its_fields():
    for seed in (-1, True, 1.5):
        with pytest.raises(ValueError, match="`seed` must be an integer >= 0"):
            figure.Spec(seed=seed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`dtype` must be 'float32' or 'float64'"):
        figure.Spec(dtype="float16")
