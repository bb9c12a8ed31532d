"""What a stored result says of where it comes from."""

import shutil
import subprocess

import pytest

import rc_jax
from experiments.lib import figure
from experiments.run import provenance


def test_provenance_has_the_version_and_no_commit_outside_a_checkout(tmp_path):
    assert provenance.commit(tmp_path) is None
    about = provenance.provenance("x", figure.Spec(), 1.0, "code")
    assert about["version"] == rc_jax.__version__


def test_an_installed_copy_inside_another_checkout_has_no_commit(tmp_path):
    """A virtual environment often lies in somebody's repository, whose commit says nothing about this package."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    installed = tmp_path / ".venv" / "experiments"
    installed.mkdir(parents=True)
    (installed / "figure.py").touch()
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert provenance.commit(installed) is None
