"""The command line, run in this process: answers against the library, every bad argument, help; and a real process."""

import json
import math
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from rc_jax import attention, collapse, ensemble, network, scale, sparsity
from rc_jax._numerics.text import in_columns
from rc_jax.cli import collapse as cli_collapse
from rc_jax.cli import docs as cli_docs
from rc_jax.cli import main, shell
from rc_jax.cli.arguments import whole
from rc_jax.cli.command import EXAMPLES, parse

ROOT = pathlib.Path(__file__).parent.parent.parent


def answer(capsys, *argv, status=0):
    """What a command prints as JSON, read back strictly."""
    assert main([*argv, "--json"]) == status

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


# argmax α(1 − n M(2α)/(n M(α))²) by mpmath with 30 digits: M(t) = E e^{ts} by quadrature, s Gaussian or a cosine.
ORDINARY, COSINE = 2.52744678491153801, 31.4584599520802058  # of 8192 keys; cosines between 128 dimensions


def test_ordinary_attention_and_cosines_are_told_apart(capsys):
    """8192 keys and heads of width 128: 0.2234 on q·k, and 31.46 on the cosine of normalised queries and keys."""
    got = answer(capsys, "scale", "8192", "--head-dim", "128", "--samples", "0")
    (row,) = got["results"]
    assert (got["scores"], got["head_dim"], got["dim"], row["typical"]) == ("gaussian", 128, None, None)
    assert row["annealed"]["scale"] == pytest.approx(ORDINARY, rel=1e-13)
    assert row["exact"]["scale"] == pytest.approx(ORDINARY, rel=1e-13)
    assert row["logits"]["factor_on_q_dot_k"] == pytest.approx(0.22339684508738574, rel=1e-13)
    for name in ("--cosine-dim", "--dim"):
        got = parse(["scale", "8192", name, "128"])
        assert (got.cosine_dim, got.head_dim) == (128, None)


@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "docs/how-to/choose-a-scale.md"])
def test_the_first_example_is_of_ordinary_attention(page):
    """Most readers copy the first one, and most have no normalised queries and keys."""
    first = EXAMPLES["scale"][0]
    assert first == "scale 8192 --head-dim 128" and next(iter(EXAMPLES)) == "scale"
    examples = re.findall(r"rc-jax (scale [\w -]*\w)", (ROOT / page).read_text("utf-8"))
    assert examples[0] == first


@pytest.mark.slow
def test_gaussian_scales_are_the_library_s(capsys):
    sizes, argv = (64, 2**20), ("64", "2^20", "--head-dim", "64", "--samples", "64", "--seed", "3")
    got = answer(capsys, "scale", *argv)
    settings = [got[name] for name in ("command", "scores", "dim", "head_dim", "seed")]
    assert settings == ["scale", "gaussian", None, 64, 3]
    with jax.enable_x64(True):
        annealed, exact = scale.optimal_scale(np.array(sizes)), scale.optimal_scale_exact(np.array(sizes))
    for row, n, a, e in zip(got["results"], sizes, annealed, exact, strict=True):
        assert row["n"] == n and row["annealed"]["converged"]
        assert row["annealed"]["scale"] == pytest.approx(float(a), rel=1e-13) == row["logits"]["multiplier"]
        assert row["exact"]["scale"] == pytest.approx(float(e), rel=1e-13)
        assert abs(row["annealed"]["scale"] - row["exact"]["scale"]) < row["annealed"]["rounding_error"]
        assert row["logits"]["factor_on_q_dot_k"] == pytest.approx(float(a) / 8, rel=1e-13)
        assert row["typical"]["converged"] and row["typical"]["samples"] == 64
    optimum = scale.typical_optimum(jax.random.key(3), 64, samples=64)
    typical = got["results"][0]["typical"]
    assert typical["scale"] == pytest.approx(float(optimum.scale), rel=1e-3)
    assert typical["standard_error"] == pytest.approx(float(optimum.standard_error), rel=1e-2)
    assert typical["mean_log_objective"] == pytest.approx(float(optimum.value), abs=1e-4)


@pytest.mark.slow
def test_cosine_scales_are_the_library_s(capsys):
    got = answer(capsys, "scale", "1e3", "8192", "--cosine-dim", "128", "--samples", "0")
    assert got["scores"] == "cosine"
    with jax.enable_x64(True):
        expected = scale.optimal_scale(np.array([1000, 8192]), 128)
    for row, a in zip(got["results"], expected, strict=True):
        assert row["annealed"]["scale"] == pytest.approx(float(a), rel=1e-13)
        assert row["exact"] is row["typical"] is None
        usual = pytest.approx(128**0.5)
        assert row["logits"] == {"multiplier": row["annealed"]["scale"], "of": "cos(q,k)", "usual_multiplier": usual}
    assert row["annealed"]["scale"] == pytest.approx(COSINE, rel=1e-13)


def test_one_scale_for_a_decoder(capsys):
    """The scale of the geometric mean of 2 … L keys, here by sums of logarithms."""
    lengths = (3, 50_000)
    got = answer(capsys, "scale", *map(str, lengths), "--decoder", "--samples", "0")
    assert got["decoder"]
    for row, length in zip(got["results"], lengths, strict=True):
        keys = math.exp(sum(map(math.log, range(2, length + 1))) / (length - 1))
        assert (row["length"], row["n"]) == (length, pytest.approx(keys, rel=1e-12))
        assert row["annealed"]["scale"] == pytest.approx(float(scale.optimal_scale(np.float64(keys))), rel=1e-6)
    assert main(["scale", "50000", "--decoder", "--samples", "0"]) == 0
    out = capsys.readouterr().out
    assert "    L      n" in out and "50000  18400" in out and "geometric mean" in out


def test_cosines_show_the_usual_factor(capsys):
    (row,) = answer(capsys, "scale", "64", "--cosine-dim", "80", "--samples", "0")["results"]
    assert row["logits"]["usual_multiplier"] == pytest.approx(80**0.5)
    assert main(["scale", "64", "--cosine-dim", "80", "--samples", "0"]) == 0
    assert "usual √d" in (out := capsys.readouterr().out) and "8.944272" in out


@pytest.mark.parametrize(("dim", "n"), [(96, 3000), (96, 24_000), (64, 3000)])
def test_what_to_expect_at_the_usual_scale(capsys, dim, n):
    """Entropy of drawn cosines, and the weight of one key that equals its query among drawn random keys."""
    (row,) = answer(capsys, "scale", str(n), "--cosine-dim", str(dim), "--samples", "0")["results"]
    draw = np.random.default_rng(0)
    # A cosine with a fixed query is one entry of a normal vector over its length.
    count = 400 if n > 10_000 else 2000
    first, rest = draw.standard_normal((count, n)), draw.chisquare(dim - 1, (count, n))
    logits = dim**0.5 * first / np.sqrt(first**2 + rest)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    shares = -(p * np.log(p)).sum(axis=1) / np.log(n)
    error = shares.std() * (1 / count + 1 / (2**21 // n)) ** 0.5  # and of the rows that the command draws
    assert abs(shares.mean() - row["usual"]["relative_entropy"]) < 5 * error < 1e-3
    perfect = np.exp(dim**0.5)
    weights = perfect / (perfect + np.exp(logits).sum(axis=1))
    assert weights.mean() == pytest.approx(row["usual"]["perfect_key_weight"], rel=0.01)


@pytest.mark.parametrize(("dim", "length", "error"), [(None, 64, 2e-3), (8, 64, 3e-3), (80, 300, 2e-3)])
def test_what_to_expect_of_a_decoder_is_a_mean_over_rows(capsys, dim, length, error):
    """Every row of causal attention between independent random vectors, and a perfect key in the last one."""
    cosines = [] if dim is None else ["--cosine-dim", str(dim)]
    (row,) = answer(capsys, "scale", str(length), *cosines, "--decoder", "--samples", "0")["results"]
    draw, shares = np.random.default_rng(1), []
    for keys in range(2, length + 1):
        s = draw.standard_normal((2000, keys))
        if dim is not None:
            s *= (dim / (s**2 + draw.chisquare(dim - 1, s.shape))) ** 0.5
        p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
        shares.append(-(p * np.log(p)).sum(axis=1).mean() / np.log(keys))
    assert np.mean(shares) == pytest.approx(row["usual"]["relative_entropy"], abs=error)
    if dim is not None:
        s = draw.standard_normal((20_000, length - 1))
        s *= (dim / (s**2 + draw.chisquare(dim - 1, s.shape))) ** 0.5
        last = 1 / (1 + np.exp(s - dim**0.5).sum(axis=1))
        assert row["usual"]["perfect_key_weight"] == pytest.approx(last.mean(), abs=5 * last.std() / 20_000**0.5 + 1e-4)
        assert main(["scale", str(length), *cosines, "--decoder", "--samples", "0"]) == 0
        said = capsys.readouterr().out
        assert said.endswith("of the weight, in the last row.\n") and "of its rows;" in said


def test_a_function_that_raises_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "crashing_kind.py").write_text("def crash(scores, seen, parts):\n    return scores @ 3\n")
    monkeypatch.chdir(tmp_path)
    assert main(["kind", "crashing_kind:crash"]) == 2
    assert capsys.readouterr().err.startswith("rc-jax: error: crashing_kind:crash: ")
    for name, code in (("dividing_kind", "1 / 0"), ("leaving_kind", "raise SystemExit(7)")):
        (tmp_path / f"{name}.py").write_text(code)
        assert main(["kind", f"{name}:any"]) == 2
        assert f"`KIND` must name a module that can be imported, got {name}:any: " in capsys.readouterr().err


def test_what_to_expect_is_said_in_a_line(capsys):
    assert main(["scale", "3000", "24000", "--head-dim", "96", "--samples", "0"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "At the usual scale expect H/log n = 0.938, 0.95 of random rows."
    assert main(["scale", "3000", "24000", "--cosine-dim", "96", "--samples", "0"]) == 0
    said = capsys.readouterr().out
    assert "H/log n = 0.94, 0.95 of random rows;\na key equal to its query gets about 0.78, 0.31 of the weight" in said


def test_docs_are_listed_and_shown(capsys, monkeypatch, tmp_path):
    folder = ROOT / "docs" / "how-to"
    names = sorted(path.stem for path in folder.glob("*.md"))
    assert main(["docs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(names)]] == names
    assert main(["--help"]) == 0
    help_text = capsys.readouterr().out
    assert all(f"  rc-jax docs {name}\n" in help_text for name in names)
    assert main(["docs", "entropy-collapse"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Entropy collapse") and "compare (rc-jax docs compare-two-models)" in out
    assert "](../" not in out and "](https://arxiv.org/abs/2303.06296)" in out  # links that lead somewhere stay
    assert answer(capsys, "docs", "troubleshoot")["text"] == (folder / "troubleshoot.md").read_text("utf-8").rstrip()
    # A wheel's own pages come before a clone's.
    (tmp_path / "one.md").write_text("# One\n")
    monkeypatch.setattr(cli_docs, "PLACES", (tmp_path, folder))
    assert answer(capsys, "docs")["pages"] == {"one": "One"}


def test_programs_are_kept_in_the_cache_of_the_user(tmp_path):
    """Nobody else's setting is touched, and importing the package sets nothing."""
    program = "import jax, rc_jax.scale; assert jax.config.jax_compilation_cache_dir is None\n" + (
        "from rc_jax.cli import main; main(['scale', '9', '--samples=0']); print(jax.config.jax_compilation_cache_dir)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    cases = (({}, tmp_path / "rc_jax"), ({"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "a")}, tmp_path / "a"))
    for more, folder in cases:
        lines = "import jax\n" + program.partition("\n")[2] if more else program
        asked = environment | {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"} | more
        done = subprocess.run(
            [sys.executable, "-c", lines], capture_output=True, text=True, check=True, env=asked, cwd=ROOT
        )
        assert done.stdout.splitlines()[-1] == str(folder)
    assert any((tmp_path / "rc_jax").iterdir())


def test_scale_in_words(capsys):
    assert main(["scale", "1024", "--samples", "64", "--head-dim", "64"]) == 0
    out = capsys.readouterr().out
    assert "± " in out.split("2.146531")[0]  # the typical optimum stands before the annealed one
    assert "64 simulated rows, seed 0" in out
    assert "0.2683164" in out
    assert "usual 1/√d_k" in out and "0.125" in out and "trained quality" in out


@pytest.mark.slow
def test_as_many_keys_as_are_allowed(capsys):
    """The typical optimum is 2 % above √(2 log n) where n is large."""
    (row,) = answer(capsys, "scale", "1e15", "--samples", "64")["results"]
    assert 0.9 < row["typical"]["scale"] / math.sqrt(2 * math.log(1e15)) < 1.15


def test_sparsity_is_the_library_s(capsys):
    got = answer(capsys, "sparsity", "relu_squared", "--beta", "-2", "0", "3", "--gamma", "1.5")
    for row, beta in zip(got["results"], (-2.0, 0.0, 3.0), strict=True):
        with jax.enable_x64(True):
            assert row["closed_form"] == pytest.approx(float(sparsity.relu_squared(beta, 1.5)), rel=1e-13)
        assert (row["beta"], row["gamma"]) == (beta, 1.5)
        assert abs(row["quadrature"]["sparsity"] - row["closed_form"]) <= row["quadrature"]["error"]
        assert row["quadrature"]["error"] < 1e-12
    got = answer(capsys, "sparsity", "decay", "--lam", "0.5", "1", "--n", "2")
    assert [row["closed_form"] for row in got["results"]] == pytest.approx([0.9**0.5, 1.0])


@pytest.mark.parametrize(
    ("kernel", "value"), [("exponential", np.exp(-0.5)), ("softmax", np.exp(-0.5)), ("relu", np.pi**-0.5)]
)
def test_a_kernel_s_quadrature_has_its_value_and_an_honest_error(capsys, kernel, value):
    (row,) = answer(capsys, "sparsity", kernel)["results"]
    assert abs(row["quadrature"]["sparsity"] - value) <= row["quadrature"]["error"] < 1e-12
    assert (row["closed_form"] is None) == (kernel == "relu")


def test_a_sparsity_below_the_smallest_number_is_not_called_0(capsys):
    assert main(["sparsity", "exponential", "--gamma", "100"]) == 1  # e^−5000
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].split()[2:4] == ["<", "2.2e-308"]
    assert err == "rc-jax: no quadrature for beta = 0, gamma = 100: its integrals leave double precision\n"


def test_a_quadrature_whose_error_is_all_of_it_is_no_number(capsys):
    assert main(["sparsity", "cosine_squared", "--gamma", "1", "1e4", "--json"]) == 1  # 0.77 ± 1 for √(2/3)
    out, err = capsys.readouterr()
    known, none = json.loads(out)["results"]
    assert known["quadrature"]["error"] < 1e-9 and none["quadrature"] is None
    assert err == "rc-jax: no value for beta = 0, gamma = 10000: the error of the quadrature is 1\n"


def test_every_named_kernel_is_offered(capsys):
    assert main(["sparsity", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in sparsity.KERNELS)


def test_an_integral_that_has_no_value_is_said(capsys):
    assert main(["sparsity", "relu", "--beta", "-45", "1"]) == 1  # zero wherever the quadrature looks
    out, err = capsys.readouterr()
    assert "–" in out
    assert err == "rc-jax: no value for beta = -45, gamma = 1: its integrals leave double precision\n"


@pytest.mark.slow
def test_collapse_is_the_ensemble_s(capsys, monkeypatch):
    shape = ("--depth", "4", "--heads", "2", "--d-model", "16", "--tokens", "8", "--samples", "9", "--seed", "5")
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=4)

    def logs(key):
        tokens = jax.random.normal(jax.random.fold_in(key, 0), (8, 16))
        return collapse.log_residuals(network.random_layers(jax.random.fold_in(key, 1), stack), tokens, stack)

    wanted = np.quantile(ensemble.run(logs, jax.random.key(5), 9), 0.5, axis=0)
    for small in (cli_collapse.SMALL, 0):  # compiled in little time, and by the ensemble itself
        monkeypatch.setattr(cli_collapse, "SMALL", small)
        got = answer(capsys, "collapse", *shape)
        medians = [row["log_residual"]["median"] for row in got["layers"]]
        np.testing.assert_allclose(medians, wanted, rtol=1e-5)
    assert got["layers"][4]["exponent"]["median"] == pytest.approx(3, abs=0.1)


def test_collapse_reports_a_known_fall(capsys, monkeypatch):
    """Real residuals, which compile long, are in the tests around this one; here known numbers are in their place."""
    known = 5 - 2 * 3.0 ** np.arange(4)  # each fall is three times the one before
    monkeypatch.setattr(collapse, "log_residuals", lambda layers, tokens, stack: tokens[0, 0] * 0 + known)
    shape = ("--depth", "3", "--heads", "1", "--d-model", "4", "--tokens", "3", "--samples", "2")
    got = answer(capsys, "collapse", *shape)
    assert [row["log_residual"]["median"] for row in got["layers"]] == pytest.approx(known.tolist())
    assert [row["exponent"] and row["exponent"]["median"] for row in got["layers"]] == [None, None, 3.0, 3.0]
    assert (got["depth"], got["skip"], got["unit"]) == (3, False, "nats")
    assert main(["collapse", *shape]) == 0
    assert "d = 4, H = 1, n = 3, without skips, 2 initialisations, seed 0" in capsys.readouterr().out


@pytest.mark.slow
def test_collapse_with_skips_keeps_tokens_apart(capsys):
    shape = "--depth 2 --heads 1 --d-model 4 --tokens 3 --samples 2"
    got = answer(capsys, "collapse", "--skip", *shape.split())
    assert got["skip"]
    assert got["layers"][2]["log_residual"]["median"] > 0
    assert all(row["not_finite"] == 0 for row in got["layers"])
    assert got["layers"][2]["exponent"]["median"] is None


@pytest.mark.parametrize(
    ("logs", "shown"),
    [
        ([1.0, 2.0, 3.5, 5.0], [None, None]),  # it rises throughout
        ([5.0, 4.0, 4.5, 2.0], [None, None]),  # two falls with a rise between
        ([5.0, 4.0, 2.0, -4.0], [2.0, 3.0]),
    ],
)
def test_a_rising_residual_has_no_exponent(capsys, monkeypatch, logs, shown):
    known = np.array(logs)
    monkeypatch.setattr(collapse, "log_residuals", lambda layers, tokens, stack: tokens[0, 0] * 0 + known)
    shape = ["--depth", "3", "--heads", "1", "--d-model", "4", "--tokens", "3", "--samples", "2"]
    got = answer(capsys, "collapse", *shape)
    assert [row["exponent"]["median"] for row in got["layers"][2:]] == pytest.approx(shown)
    assert main(["collapse", *shape]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] == "–" for line in lines[5:7]] == [value is None for value in shown]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "Missing subcommand: Expected one of {scale, sparsity, collapse, kind, architecture, trace, docs}"),
        ("entropy 3", "entropy"),
        ("colapse", "Unrecognized options: colapse; did you mean 'collapse'; see rc-jax --help"),
        ("collapse --dept 3", "did you mean '--depth'; see rc-jax collapse --help"),
        ("scale 8 --cosin-dim 8", "did you mean '--cosine-dim'; see rc-jax scale --help"),
        (
            "kind softpick --figure nowhere/a.png",
            "`--figure` must be a file in an existing folder, got 'nowhere/a.png'",
        ),
        ("kind softpick --figure a.jpg", "`--figure` must end in .png, .pdf, .svg, got 'a.jpg'"),
        ("architecture a.json --figure nowhere/a.pdf", "`--figure` must be a file in an existing folder"),
        ("kind sofpick", "got sofpick; did you mean 'softpick'?"),
        ("sparsity sofmax", "got sofmax; did you mean 'softmax'?"),
        ("trace --text x --switches atention", "got 'atention'; did you mean 'attention'?"),
        ("scale", "`N` must be given"),
        ("scale x", "`N` must be a whole number such as 1024 or 2^20, got 'x'"),
        ("scale 2.5", "`N` must be a whole number"),
        ("scale nan", "`N` must be a whole number"),
        ("scale inf", "`N` must be a whole number"),
        ("scale 1", "`N` must be >= 2, got 1"),
        ("scale -5", "`N` must be >= 2, got -5"),
        ("scale 64 1", "`N` must be >= 2, got 1"),
        ("scale 10^300", "`N` must be <= 1e+15"),
        ("scale 10^999", "`N` must be <= 1e+15, got a number of more than 300 digits"),
        ("scale 64 --dim 2", "`--cosine-dim` must be >= 3, got 2"),
        ("scale 64 --cosine-dim nan", "`--cosine-dim` must be finite, got nan"),
        ("scale 64 --cosine-dim 1e9", "`--cosine-dim` must be <= 1e+06"),
        ("scale 64 --dim", "--dim"),
        ("scale 64 --dim 8 --head-dim 8", "`--head-dim` must be left out for cosine scores"),
        ("scale 64 --head-dim 0", "`--head-dim` must be >= 1, got 0"),
        ("scale 64 --samples 1", "`--samples` must be 0 or >= 2, got 1"),
        ("scale 64 --samples many", "--samples"),
        ("scale 64 --samples 10000000", "`--samples` must be <= 1e+06"),
        ("scale 64 --seed -1", "`--seed` must be >= 0, got -1"),
        ("scale 64 --colour", "--colour"),
        ("docs chose-a-scale", "got chose-a-scale; did you mean 'choose-a-scale'?"),
        ("docs choose-a-scale troubleshoot", "`PAGE` must be one name, got choose-a-scale troubleshoot"),
        ("sparsity", "`KERNEL` must be one of exponential, identity, relu, relu_squared, power6, softplus, sigmoid"),
        ("sparsity cosine", "`KERNEL` must be one of"),
        ("sparsity relu identity", "`KERNEL` must be one of"),
        ("sparsity relu --gamma 0", "`--gamma` must be > 0, got 0"),
        ("sparsity relu --gamma", "`--gamma` must be followed by a number or several, got nothing"),
        ("sparsity decay --lam 0.5 --n", "`--n` must be followed by"),
        ("sparsity relu --gamma a", "--gamma"),
        ("sparsity relu --beta inf", "`--beta` must be finite"),
        ("sparsity relu --beta 1e9", "`--beta` must be at most 1e+06 times `--gamma` in size"),
        ("sparsity relu --beta 1 2 --gamma 1 2 3", "`--beta` and `--gamma` must have equally many values, or one"),
        ("sparsity relu --lam 0.5", "`--lam` must be left out"),
        ("sparsity decay --lam 0.5", "`--n` must be given for decay"),
        ("sparsity decay --n 5", "`--lam` must be given for decay"),
        ("sparsity decay --lam 2 --n 5", "`--lam` must be <= 1, got 2"),
        ("sparsity decay --lam 0 --n 5", "`--lam` must be > 0, got 0"),
        ("sparsity decay --lam 0.5 --n 0", "`--n` must be >= 1, got 0"),
        ("sparsity decay --lam 0.5 --n 5 --gamma 1", "`--gamma` must be left out"),
        ("collapse --depth 0", "`--depth` must be >= 1, got 0"),
        ("collapse --heads 3", "`--heads` must divide --d-model 64, got 3"),
        ("collapse --heads 0", "`--heads` must be >= 1, got 0"),
        ("collapse --d-model 0", "`--d-model` must be >= 1, got 0"),
        ("collapse --tokens 1", "`--tokens` must be >= 2, got 1"),
        ("collapse --samples 1", "`--samples` must be >= 2, got 1"),
        ("collapse --seed 4294967296", "`--seed` must be <= "),
        ("collapse --depth two", "--depth"),
        ("collapse 5", "5"),
    ],
)
def test_bad_arguments_are_one_line_and_status_two(capsys, argv, message):
    assert main(argv.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("rc-jax: error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("more", "terminal", "shown"),
    [([], True, True), ([], False, False), (["--quiet"], True, False), (["--json"], True, False)],
)
def test_a_bar_where_stderr_is_a_terminal_and_nobody_minds(capsys, monkeypatch, more, terminal, shown):
    asked = []

    def interrupted(*_, progress):
        asked.append(progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(ensemble, "run", interrupted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert main(["collapse", "--samples", "4096", *more]) == 130
    assert asked == [shown]
    assert capsys.readouterr() == ("", "")


def test_quiet_is_taken_everywhere(capsys):
    said = []
    for more in ([], ["--quiet"]):
        assert main(["sparsity", "decay", "--lam", "0.5", "--n", "8", *more]) == 0
        said.append(capsys.readouterr())
    assert said[0] == said[1]
    for name, examples in EXAMPLES.items():
        assert parse([*examples[0].split(), "--quiet"]).quiet, name


def test_whole_numbers_and_tables():
    for text, number in (("1024", 1024), ("2^10", 1024), ("2**10", 1024), ("1e3", 1000), ("1.5e1", 15)):
        assert whole("N", text, 2, 10**15) == number
    assert in_columns(["a", "bb"], [["1", "2"], ["333", "4"]]) == "  a  bb\n  1   2\n333   4"


def process(*code, **options):
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, *code], capture_output=True, text=True, env=environment, **options)


def test_a_real_process():
    done = process("-m", "rc_jax.cli", "scale", "1024", "--samples", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2.146531" in done.stdout
    done = process("-m", "rc_jax.cli", "scale", "1")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "rc-jax: error: `N` must be >= 2, got 1\n")


def test_help_and_refusals_do_not_wait_for_jax():
    code = "import sys; from rc_jax.cli import main; main(['--help']); main(['scale', '--cosine-dim', 'x'])"
    code += "; main(['docs', 'troubleshoot'])"
    done = process("-c", f"{code}; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert shell._cache() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert shell._cache() == pathlib.Path("caches/rc_jax")
