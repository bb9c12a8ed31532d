"""What an import of the package does to its user, and that it knows its version."""

import importlib.metadata
import pathlib
import subprocess
import sys

import rc_jax

ROOT = pathlib.Path(__file__).parent.parent


def test_importing_changes_no_setting_and_starts_nothing():
    program = """
import sys, jax
before = dict(jax.config.values)
import rc_jax
from rc_jax import attention, collapse, diagnostics, ensemble, network, pretrained, scale, sparsity, special
assert dict(jax.config.values) == before, "a JAX setting was touched"
assert not jax._src.xla_bridge._backends, "a backend was started"
heavy = {"flax", "gguf", "matplotlib", "safetensors", "tokenizers", "torch", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_one_version():
    assert importlib.metadata.version("rc_jax") == rc_jax.__version__
    assert f"\nversion: {rc_jax.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
