"""The public names that are promised: the code keeps them, and docs/stability.md says what the code does."""

import importlib
import inspect
import pathlib
import re
import warnings

import jax
import jax.numpy as jnp
import pytest

import rc_jax
from rc_jax import attention, collapse, ensemble, network, pretrained, scale, sparsity
from rc_jax.collapse import softmax_spectrum

ROOT = pathlib.Path(__file__).parent.parent
REQUIRED = inspect.Parameter.empty
LAYERED = "params x spec | scale=None mask=None"
# A copy of the promise that no edit of code or page changes by itself: what stands before | may also be given by place.
PROMISE = {
    "attention.AttentionSpec": "| d_model heads=1 d_head=None scores='dot' weights='softmax' causal=False",
    "attention.init": "key spec | gain=1.0 bias_std=0.0 dtype=None",
    "attention.attend": LAYERED,
    "attention.attention_weights": LAYERED,
    "attention.multiplications": "| tokens d_model heads=1 projections=False",
    "network.StackSpec": "| attention depth skip=False mlp=None norm=None",
    "network.init": "key spec | gain=1.0 bias_std=0.0 dtype=None",
    "network.apply": LAYERED,
    "collapse.residual": "x center='mean'",
    "collapse.norm_1inf": "x",
    "collapse.diameter": "x",
    "collapse.stable_rank": "x",
    "collapse.log_residuals": LAYERED,
    "collapse.path_length_sums": LAYERED,
    "collapse.layer_bound": LAYERED + " center='mean'",
    "collapse.depth_bound": LAYERED + " center='mean'",
    "collapse.tanh_bound": LAYERED,
    "collapse.sample_log_residuals": "key x spec | gain=1.0 scale=None mask=None width=None",
    "scale.gradient_norm": "scores alpha",
    "scale.annealed_objective": "alpha n dim=None",
    "scale.optimal_scale": "n dim=None",
    "scale.optimal_scale_exact": "n",
    "scale.expected_objective": "key alpha n dim=None samples=1024",
    "scale.typical_scale": "key n dim=None samples=256",
    "sparsity.sparsity": "a axis=-1",
    "sparsity.exponential": "gamma",
    "sparsity.relu_squared": "beta gamma",
    "sparsity.identity": "beta gamma",
    "sparsity.nonnegative_linear": "q mean cov",
    "sparsity.decay": "lam n",
    "sparsity.from_kernel": "f beta gamma | kinks=()",
    "ensemble.run": "fn key count | batch_size=None mesh=None progress=False",
    "pretrained.load": "folder | dtype=None",
    "special.log_bessel_i": "order x",
    "special.log_hyp0f1": "b z",
    "special.lambert_w0": "x",
}
ROW = re.compile(r"^\| `(\w+\.\w+)` \| `\((.*)\)` \| .+ \|$", re.MULTILINE)
TABLE = ROW.findall((ROOT / "docs" / "stability.md").read_text())


def public(name):
    package, _, attribute = name.partition(".")
    module = importlib.import_module(f"rc_jax.{package}")
    assert package in rc_jax.__all__ and attribute in module.__all__
    return getattr(module, attribute)


def written(function):
    """A signature without annotations, as the page writes it."""
    words, by_name = [], False
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.KEYWORD_ONLY and not by_name:
            words.append("*")
            by_name = True
        words.append(each.name if each.default is REQUIRED else f"{each.name}={each.default!r}")
    return ", ".join(words)


@pytest.mark.parametrize("name", PROMISE)
def test_the_promise_is_kept(name):
    places, _, by_name = PROMISE[name].partition("|")
    parameters = inspect.signature(public(name)).parameters
    in_place = [each.name for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    promised = dict(word.partition("=")[::2] for word in (places + by_name).split())
    for index, word in enumerate(places.split()):
        assert in_place[index] == word.partition("=")[0]
    for word, default in promised.items():
        assert (repr(parameters[word].default) if default else REQUIRED) == (default or parameters[word].default)
    for word in set(parameters) - set(promised):
        assert parameters[word].default is not REQUIRED, f"`{word}` is new, so it needs a default"


def test_the_page_lists_what_is_promised():
    assert [name for name, _ in TABLE] == list(PROMISE)


@pytest.mark.parametrize(("name", "parameters"), TABLE, ids=[name for name, _ in TABLE])
def test_the_page_says_what_the_code_does(name, parameters):
    now = written(public(name))
    if parameters.endswith(", …"):
        assert now.startswith(parameters.removesuffix("…")), now
        assert "*" in parameters  # what "…" stands for is given by name
    else:
        assert now == parameters


KEY = jax.random.key(0)
LAYER = attention.AttentionSpec(d_model=8, heads=2)
STACK = network.StackSpec(attention=LAYER, depth=3, skip=True)
PURE = network.StackSpec(attention=LAYER, depth=3)
TOKENS = jax.ShapeDtypeStruct((5, 8), jnp.float32)
SHAPES = {  # of what each function gives for five tokens of eight features
    "attention.attend": (lambda x: attention.attend(attention.init(KEY, LAYER), x, LAYER), (5, 8)),
    "attention.attention_weights": (
        lambda x: attention.attention_weights(attention.init(KEY, LAYER), x, LAYER),
        (2, 5, 5),
    ),
    "network.apply": (lambda x: network.apply(network.init(KEY, STACK), x, STACK), (5, 8)),
    "collapse.residual": (lambda x: collapse.residual(x, "argmin"), (5, 8)),
    "collapse.norm_1inf": (collapse.norm_1inf, ()),
    "collapse.diameter": (collapse.diameter, ()),
    "collapse.stable_rank": (collapse.stable_rank, ()),
    "collapse.log_residuals": (lambda x: collapse.log_residuals(network.init(KEY, STACK), x, STACK), (4,)),
    "collapse.path_length_sums": (
        lambda x: collapse.path_length_sums(network.init(KEY, STACK), x, STACK),
        (4, 5, 8),
    ),
    "collapse.layer_bound": (lambda x: collapse.layer_bound(network.init(KEY, PURE), x, PURE), (3,)),
    "collapse.depth_bound": (lambda x: collapse.depth_bound(network.init(KEY, PURE), x, PURE), (4,)),
    "collapse.tanh_bound": (lambda x: collapse.tanh_bound(network.init(KEY, PURE), x, PURE), (4,)),
    "collapse.sample_log_residuals": (lambda x: collapse.sample_log_residuals(KEY, x, STACK), (4,)),
    "scale.gradient_norm": (lambda x: scale.gradient_norm(x, 2.0), (5,)),
    "scale.optimal_scale": (lambda x: scale.optimal_scale(10 + x[:, :1] ** 2, dim=8 + x[0] ** 2), (5, 8)),
    "scale.typical_scale": (lambda x: scale.typical_scale(KEY, 16, 8 + x[0, 0] ** 2, samples=8), ()),
    "sparsity.sparsity": (lambda x: sparsity.sparsity(x, axis=0), (8,)),
    "sparsity.from_kernel": (lambda x: sparsity.from_kernel(jnp.tanh, x, 1.0), (5, 8)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_results_have_the_promised_shapes(name):
    function, shape = SHAPES[name]
    assert name in PROMISE and jax.eval_shape(function, TOKENS).shape == shape


def test_other_results_are_of_the_promised_kinds():
    assert type(attention.multiplications(tokens=256, d_model=768, heads=12)) is int
    assert {leaf.shape[0] for leaf in jax.tree.leaves(jax.eval_shape(lambda: network.init(KEY, STACK)))} == {3}
    objective = jax.eval_shape(lambda alpha: scale.expected_objective(KEY, alpha, 16, samples=8), jnp.ones(2))
    assert type(objective) is tuple and [each.shape for each in objective] == [(2,), (2,)]
    assert inspect.signature(ensemble.run).return_annotation is ensemble.Statistics


def test_a_checkpoint_begins_with_parameters_and_specification():
    assert pretrained.Checkpoint._fields[:2] == ("params", "spec")
    assert inspect.signature(pretrained.load).return_annotation is pretrained.Checkpoint


def test_specifications_are_frozen_and_hashable():
    layer = attention.AttentionSpec(d_model=8)
    for spec in (layer, network.StackSpec(attention=layer, depth=2)):
        assert isinstance(hash(spec), int)
        with pytest.raises(AttributeError):
            spec.depth = 3


OLD_SPELLINGS = {
    "`sigma` of `gaussian_squared_norm`": (softmax_spectrum.gaussian_squared_norm, {"sigma": 0.5}, (0.5,)),
    "`sigma` of `gaussian_stable_rank`": (softmax_spectrum.gaussian_stable_rank, {"sigma": 0.5, "n": 64}, (0.5, 64)),
    "`d` of `layer_second_singular_value`": (
        softmax_spectrum.layer_second_singular_value, {"d": 8, "gamma": 0.5, "n": 64}, (0.5, 64, 8),
    ),
    "`width` of `random_projections`": (sparsity.random_projections, {"width": 3, "key": KEY, "count": 2}, (KEY, 2, 3)),
    "`optimize_scale`": (scale.optimize_scale, {"n": 64}, None),
}  # fmt: skip


@pytest.mark.parametrize("spelling", OLD_SPELLINGS)
def test_an_old_spelling_works_and_says_so_once(spelling):
    function, old, new = OLD_SPELLINGS[spelling]
    with pytest.warns(DeprecationWarning, match=f"{spelling} is now called"):
        before = function(**old)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = function(**old)
    expected = scale.optimise_scale(64) if new is None else function(*new)
    for value in (before, again):
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), value, expected))


def test_an_argument_has_one_name_at_a_time():
    with pytest.raises(TypeError, match="`gamma` must be given once"):
        softmax_spectrum.gaussian_second_singular_value(n=64, gamma=0.5, sigma=0.5)
