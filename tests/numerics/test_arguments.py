"""The checks of arguments themselves, on a function that does nothing else."""

import dataclasses
import itertools
import types
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Float, Int, Integer, Key

from rc_jax import collapse, scale, special
from rc_jax._numerics import arguments


@arguments.guard(
    x=arguments.real, positive=arguments.positive, share=arguments.bounded(0, 1, open_low=True, open_high=True)
)
def take(*, x=1.0, positive=1.0, share=0.5):
    return x, positive, share


KEY = jax.random.key(0)
REFUSED = [
    ({"x": KEY}, TypeError, "`x` must be a real number or an array of them, got a typed key, key<fry>"),
    ({"x": "1"}, TypeError, "`x` must be a real number or an array of them, got '1'"),
    ({"x": [1.0, True]}, None, ""),
    ({"x": [True]}, TypeError, r"`x` must be a real number or an array of them, got \[True\]"),
    ({"x": ["1"]}, TypeError, "`x` must be a real number"),
    ({"x": np.longdouble(1)}, TypeError, "`x` must be a real number"),
    ({"x": 1j}, TypeError, "`x` must be a real number"),
    ({"x": [[1.0], [1.0, 2.0]]}, ValueError, "`x` must be .* array of them, got rows of different lengths: "),
    ({"x": 2**64}, None, ""),
    ({"x": [2**64, 1]}, None, ""),
    ({"x": 10**60}, ValueError, r"`x` must be at most 3.403e\+38 in size, to fit float32, got 1e\+60"),
    ({"x": 10**400}, ValueError, "`x` must be finite, got an int"),
    ({"x": 1e39}, ValueError, r"`x` must be at most 3.403e\+38 in size, to fit float32, got 1e\+39"),
    ({"x": np.array([0.0, -1e39])}, ValueError, r"`x` must be at most .*, got -1e\+39"),
    ({"x": float("nan")}, ValueError, "`x` must be finite, got nan"),
    ({"x": jnp.array([1.0, jnp.inf])}, ValueError, r"`x` must be finite, got float32\[2\]"),
    ({"x": 1e-50}, None, ""),
    ({"positive": 1e-40}, ValueError, "`positive` must be > 0, got 1e-40, which is 0 in float32"),
    ({"positive": np.float32(1e-40)}, ValueError, "`positive` must be > 0, got .*, which is 0 in float32"),
    ({"positive": [1.0, 0.0]}, ValueError, "`positive` must be > 0, got 0"),
    ({"share": 1 - 1e-12}, ValueError, "`share` must be > 0 and < 1, got 0.999999999999, which is 1 in float32"),
    ({"share": 1.5}, ValueError, "`share` must be > 0 and < 1, got 1.5"),
]


@pytest.mark.parametrize(("argument", "error", "message"), REFUSED)
def test_numbers_on_the_host(argument, error, message):
    if error is None:
        take(**argument)
    else:
        with pytest.raises(error, match=message):
            take(**argument)


def test_double_precision_holds_more(x64):
    take(x=1e39, positive=1e-40, share=1 - 1e-12)
    take(x=np.float32(3e38))
    with pytest.raises(ValueError, match="`positive` must be > 0, got 1e-310, which is 0 in float64"):
        take(positive=1e-310)
    with pytest.raises(ValueError, match=r"`x` must be at most .* to fit float32, got 1e"):
        arguments.held("x", 1e39, np.dtype("float32"))
    with pytest.raises(ValueError, match=r"`x` must be at least 1.175e-38 in size, to fit float32, got 1e-40"):
        arguments.held("x", 1e-40, np.dtype("float32"), positive=True)


def test_large_device_arrays_are_not_copied(monkeypatch):
    """Nor is one that lives on several hosts, of whatever size."""
    copied, large = [], jnp.full(1000, jnp.nan)
    real = np.asarray
    monkeypatch.setattr(
        arguments.np, "asarray", lambda value, *rest: (copied.append(np.size(value)), real(value, *rest))[1]
    )
    take(x=large)
    assert 1000 not in copied
    with pytest.raises(ValueError, match="`x` must be finite"):
        take(x=large[:3])
    assert 3 in copied

    class Elsewhere:
        """As much of a global array as the checks look at."""

        dtype, shape, ndim, size, is_fully_addressable = np.dtype("float32"), (), 0, 1, False

        def __array__(self, *_, **__):
            raise RuntimeError("not fully addressable")

    monkeypatch.setattr(arguments, "jax", types.SimpleNamespace(Array=Elsewhere, tree=jax.tree, dtypes=jax.dtypes))
    arguments.real("x", Elsewhere())
    arguments.positive("positive", Elsewhere())
    assert arguments.describe(Elsewhere()) == "float32[]"


def test_no_array_of_another_device_is_copied_to_be_checked(monkeypatch):
    scores, labels = jnp.zeros((64, 3)), jnp.full(64, 7)
    with pytest.raises(ValueError, match="`labels` must be"):
        scale.cross_entropy_gradient(scores, labels)
    monkeypatch.setattr(arguments, "in_host_memory", lambda value: not isinstance(value, jax.Array))
    assert jnp.isnan(scale.cross_entropy_gradient(scores, labels)).all()
    with pytest.raises(ValueError, match="`labels` must be"):
        scale.cross_entropy_gradient(scores, np.asarray(labels))


@pytest.mark.parametrize("size", [3, 40])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_numbers_that_are_not_looked_at_become_nan_outside_their_interval(monkeypatch, size, traced, dtype):
    """Whether they are traced, too many, or on a device: the formula has a value there, and it is wrong."""
    monkeypatch.setattr(arguments, "in_host_memory", lambda value: not isinstance(value, jax.Array))
    n = jnp.arange(size).astype(dtype)
    measure = lambda n: scale.annealed_entropy(2.0, n)  # noqa: E731
    got = (jax.jit(measure) if traced else measure)(n)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(jnp.isnan(got), n < 2)
    half = (jax.jit(scale.annealed_entropy) if traced else scale.annealed_entropy)(jnp.asarray(2.0, "float16"), n)
    assert half.dtype == ("float32" if dtype == "float32" else "float16")


def test_numbers_of_large_arrays_become_nan_outside_their_interval():
    correlations = collapse.uniform_correlation(0.5, 1.0, jnp.full(40, -3.0))
    assert jnp.isnan(correlations).all()
    assert jnp.isnan(scale.annealed_entropy(jnp.full(40, -3.0), 1000)).all()
    assert jnp.isnan(collapse.random_energy_participation(jnp.full(40, -3.0))).all()


def test_nan_in_is_nan_out():
    unknown = jnp.full(40, jnp.nan)
    for function in (special.lambert_w0, special.lambert_w0_exp, collapse.random_energy_participation):
        assert jnp.isnan(function(unknown)).all()


def test_traced_values_and_keys_are_described():
    seen = []
    jax.jit(lambda x: seen.append(arguments.describe(x)) or x)(1.0)
    jax.jit(lambda x: seen.append(arguments.describe(x)) or x)(jnp.ones((3, 4)))
    assert seen == ["traced float32[]", "traced float32[3,4]"]
    assert (
        arguments.describe(KEY) == "a typed key, key<fry>"
        and arguments.describe(jax.random.split(KEY)) == "key<fry>[2]"
    )
    assert arguments.describe(jnp.float32(2)) == "float32 2.0"
    with pytest.raises(TypeError, match=r"`x` must be .*, got a list with traced values: stack them with jnp.stack"):
        jax.jit(lambda x: take(x=[x, 1.0]))(1.0)
    with pytest.raises(TypeError, match=r"`key` must be one typed key from jax.random.key, got 0.5"):
        arguments.random_key("key", 0.5)


@dataclasses.dataclass(frozen=True)
class Record:
    """One field of every annotation that stands for a check."""

    size: int = 1
    share: float = 0.5
    name: Literal["a", "b"] | None = None
    apply: Callable[[int], int] = abs

    def __post_init__(self):
        arguments.check_fields(self, share=arguments.scalar(arguments.bounded(0, 1)))


class Pair(NamedTuple):
    """Fields of any kind."""

    first: int
    second: int


@arguments.guard()
def annotated(
    *,
    key: Key[jax.Array, ""] = KEY,
    rows: Float[jax.Array, "row column"] | None = None,
    ids: Int[jax.Array | np.ndarray, " token"] | None = None,
    scale: ArrayLike = 1.0,
    dtype: DTypeLike | None = None,
    word: str = "a",
    on: bool = False,
    record: Record | Pair | None = None,
    open_rank: Float[jax.Array, "... score"] | None = None,
):
    return key, rows, ids, scale, dtype, word, on, record, open_rank


NOT_ANNOTATED = [
    ({"key": 0}, TypeError, "`key` must be one typed key from jax.random.key, got 0"),
    (
        {"rows": jnp.ones((2, 2), int)},
        TypeError,
        r"`rows` must be a floating-point array of shape \(row, column\), got",
    ),
    ({"rows": jnp.ones((1, 2, 2))}, ValueError, r"`rows` must be .*, got float32\[1,2,2\]: map a batch with jax.vmap"),
    ({"rows": jnp.ones(2)}, ValueError, r"`rows` must be .*, got float32\[2\]$"),
    ({"rows": [[1.0]]}, TypeError, r"`rows` must be .*, got \[\[1.0\]\]$"),
    ({"ids": jnp.ones(2)}, TypeError, r"`ids` must be an array of integers of shape \(token\), got float32\[2\]"),
    ({"scale": "1"}, TypeError, "`scale` must be a real number"),
    ({"scale": np.nan}, ValueError, "`scale` must be finite"),
    ({"dtype": "int32"}, TypeError, "`dtype` must be a floating-point dtype, got 'int32'"),
    ({"word": " "}, ValueError, "`word` must be a string that is not empty"),
    ({"on": 1}, TypeError, "`on` must be a bool, got 1"),
    ({"record": 1}, TypeError, "`record` must be a Record or a Pair or None, got 1"),
]


@pytest.mark.parametrize(("argument", "error", "message"), NOT_ANNOTATED)
def test_an_annotation_is_a_check(argument, error, message):
    with pytest.raises(error, match=message):
        annotated(**argument)


def test_what_annotations_allow():
    """What is given arrives as it was."""
    given = {"rows": np.ones((1, 2)), "ids": np.arange(3), "scale": [1, 2], "dtype": "bfloat16", "on": np.True_}
    for record in (Record(), Pair(1, 2), None):
        got = annotated(**given, record=record)
        assert all(any(value is each for each in got) for value in given.values()) and got[7] is record
    # Axes without names stand for no check.
    assert annotated(key=KEY, rows=None, dtype=jnp.float32, word="b", open_rank=0)[4:6] == (jnp.float32, "b")


def test_unknown_numbers_pass_several_checks():
    """A number that leaves the interval of either is NaN, by position and by name."""

    @arguments.guard(share=(arguments.bounded(0), arguments.bounded(high=1)))
    def same(share):
        return share

    for got in (
        jax.jit(same)(jnp.array([-1.0, 0.5, 2.0])),
        jax.jit(lambda x: same(share=x))(jnp.array([-1.0, 0.5, 2.0])),
    ):
        np.testing.assert_array_equal(got, [np.nan, 0.5, np.nan])
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        jax.jit(lambda x: same(x, 1.0))(jnp.ones(3))


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"size": 0}, ValueError, "`size` must be an integer >= 1, got 0"),
        ({"size": True}, TypeError, "`size` must be an integer >= 1, got True"),
        ({"share": 2.0}, ValueError, "`share` must be >= 0 and <= 1, got 2"),
        ({"name": "c"}, ValueError, "`name` must be one of None, 'a', 'b', got 'c'"),
        ({"apply": 1}, TypeError, "`apply` must be a function, got 1"),
    ],
)
def test_fields_of_a_record(fields, error, message):
    assert Record(name="a").name == "a"
    with pytest.raises(error, match=message):
        Record(**fields)


def test_bounds_of_integers_and_of_axes():
    arguments.integer(None)("n", -4)
    with pytest.raises(ValueError, match="`n` must be an integer >= -3, got -4"):
        arguments.integer(-3)("n", -4)
    last = arguments.float_array("...", "score", score=2)
    last("s", jnp.ones((3, 1, 2)))
    for wrong in (jnp.ones((3, 1)), jnp.ones(())):
        with pytest.raises(ValueError, match=r"`s` must be .* of shape \(..., score\) with score >= 2, got float32"):
            last("s", wrong)


@pytest.mark.parametrize("x64", [False, True])
def test_plain_numbers_are_judged_as_lists_of_them(x64):
    """There is a quick way for them; what it does not take goes the long way, as lists do."""
    ends = [
        arguments.real,
        arguments.positive,
        arguments.bounded(2),
        arguments.bounded(high=0),
        arguments.bounded(-1, 1),
    ]
    sides = itertools.product([False, True], repeat=2)
    checks = ends + [arguments.bounded(0, 1, open_low=low, open_high=high) for low, high in sides]
    near = [
        end + step for end in (-1.0, 0.0, 1.0, 2.0) for step in (-1e-6, -1e-9, -1e-17, 0.0, 1e-50, 1e-40, 1e-12, 1e-6)
    ]
    values = [*near, 0, 1, 2, -1, 10**30, 10**40, 1e37, 3.3e38, 3.5e38, 1e-37, 1e-38, -1e-38, -1e300, np.inf, np.nan]

    def fits(check, value):
        try:
            check("value", value)
        except ValueError:
            return False
        return True

    with jax.enable_x64(x64):
        for check, value in itertools.product(checks, values):
            assert fits(check, value) == fits(check, [value]), (check, value)


@pytest.mark.parametrize(
    ("annotation", "check"),
    [
        (ArrayLike, arguments.real),
        (jaxtyping.ArrayLike | None, arguments.real),
        (DTypeLike | None, arguments.floating_dtype),
        (jaxtyping.Key[jax.Array, ""], arguments.random_key),
        (Callable[[int], int] | None, arguments.function),
        (str, arguments.text),
    ],
)
def test_annotations_of_this_jax_and_jaxtyping_are_known(annotation, check):
    """Were they not, nothing would be checked, and nothing would say so."""
    assert arguments.annotated(annotation) == (check,)
    for arrays in (Float[jax.Array, " token"], Integer[jax.Array | np.ndarray, "window token"] | None):
        assert len(arguments.annotated(arrays)) == 1
