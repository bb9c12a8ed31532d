"""Work of a figure that was killed is found by the next run of the same code, and gone once the result is stored."""

import pytest

from experiments import unfinished


def test_outside_a_run_nothing_is_kept():
    assert unfinished.place("sorting") is None


def test_it_stays_where_the_run_failed_and_goes_where_it_succeeded(tmp_path):
    folder = tmp_path / "figure-0123-code1"
    with pytest.raises(KeyboardInterrupt), unfinished.kept(folder):
        place = unfinished.place("sorting")
        assert place == folder / "sorting"
        place.mkdir(parents=True)
        raise KeyboardInterrupt
    assert place.exists()
    with unfinished.kept(folder):
        assert unfinished.place("sorting").exists()
    assert not folder.exists()
    assert unfinished.place("sorting") is None


def test_work_of_another_state_of_the_code_goes_and_of_another_figure_stays(tmp_path):
    for name in ("figure-0123-code1", "figure-4567-code1", "other-0123-code1"):
        (tmp_path / name).mkdir()
    with unfinished.kept(tmp_path / "figure-0123-code2"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure-4567-code1", "other-0123-code1"]
