"""Every real figure has its parts and computes its smoke preset; one goes from computing to the record."""

import pytest

from experiments.ledger import Verdict, judged, record
from experiments.lib import figure
from experiments.lib.figure import PRESET_NAMES, Broken
from experiments.run import identity, runner
from tests.experiments import smoke_data

NAMES = figure.names()
# `.ci/run` makes the core at its quick preset.
OTHERS = [name for name in NAMES if isinstance(each := figure.load(name), Broken) or not each.ABOUT.core]


def test_smoke_from_computing_to_the_record(tmp_path, name="scale_gaussian"):
    module = figure.load(name)
    assert not isinstance(module, Broken), module.error
    run = runner.Run(tmp_path, "smoke")
    entry = runner.make(run, name, module)
    assert entry.status == record.DONE, entry.reason
    assert entry.claims
    assert record.duplicates([entry]) == []
    record.write(run.folder, [entry])
    assert repr(record.read(run.folder)[name]) == repr(entry)
    stored = runner.load_stored(run, name, module)
    assert stored is not None
    assert stored.data.keys() == smoke_data.load(name).keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_smoke_computes_what_is_stored(name):
    """The same arrays of the same shapes, and the same rows not run; `test_stored` draws them."""
    module, stored = figure.load(name), smoke_data.load(name)
    data = smoke_data.computed(name)
    hint = f"make it again: python -m tests.experiments.smoke_data {name}"
    assert {key: value.shape for key, value in data.items()} == {key: each.shape for key, each in stored.items()}, hint
    verdicts = [[claim.verdict is Verdict.NOT_RUN for claim in judged(module.ROWS, each)] for each in (data, stored)]
    assert verdicts[0] == verdicts[1], hint


@pytest.mark.parametrize("name", NAMES)
def test_parts(name):
    module = figure.load(name)
    assert not isinstance(module, Broken), module.error
    for preset in PRESET_NAMES:
        spec = module.PRESETS[preset]
        assert isinstance(spec, module.Spec)
        assert isinstance(spec, figure.Spec)
        assert spec.seed == 0
        assert module.ABOUT.minutes[preset] > 0
        assert len(identity.stem(runner.Run(preset=preset), name, module)) == len(name) + 13
    costs = [module.ABOUT.minutes[preset] for preset in PRESET_NAMES]
    assert costs == sorted(costs)
    assert module.ABOUT.title
    assert module.ABOUT.caption
    assert module.ABOUT.formula


def test_the_core_is_small():
    """What a command without names makes: about fifteen figures, of every subject that the package exists for."""
    core = [name for name in NAMES if figure.load(name).ABOUT.core]
    assert 12 <= len(core) <= 16
    assert {"collapse", "paths", "blocks", "scale", "sparsity", "models"} <= {figure.load(n).ABOUT.topic for n in core}
    assert sum(figure.load(name).ABOUT.minutes["quick"] for name in core) <= 8
