"""Position codes and rotations of a layer against many digits, the released code, and as complex numbers."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from rc_jax import attention
from rc_jax.attention import Rotary
from rc_jax.attention.positions import rotate

POSITIONS = np.array([0, 1, 2, 17, 1000, 65_535, 65_536, 999_983, 2_147_483_647, -1, -70_001])
WIDTH = 16


def exact(positions, width, base=10_000.0):
    """Sines and cosines of p base^(−2i/width), to 40 digits."""
    frequencies = defined(Rotary(base=base), width)
    with mpmath.workdps(40):
        rows = [[float(f(int(p) * omega)) for omega in frequencies for f in (mpmath.sin, mpmath.cos)]
                for p in positions]  # fmt: skip
    return np.array(rows)


@pytest.mark.slow
def test_sinusoids_at_any_position_against_many_digits(dtype):
    eps = float(jnp.finfo(dtype).eps)
    for base in (10_000, 500_000.0):
        code = attention.sinusoidal(jnp.asarray(POSITIONS, "int32"), WIDTH, base=base, dtype=dtype)
        assert code.dtype == dtype
        np.testing.assert_allclose(code, exact(POSITIONS, WIDTH, base), rtol=0, atol=4 * eps)
    np.testing.assert_allclose(jnp.linalg.norm(code, axis=1), np.sqrt(WIDTH / 2), rtol=4 * eps)


def test_an_offset_is_a_rotation_of_every_pair(x64):
    """PE(p + k) = R_k PE(p), R_k block-diagonal and the same for all p."""
    offset, positions = 5, jnp.arange(0, 40_000, 997)
    here, there = (np.asarray(attention.sinusoidal(p, WIDTH)) for p in (positions, positions + offset))
    blocks = np.zeros((WIDTH, WIDTH))
    for i in range(WIDTH // 2):
        sin, cos = exact([offset], WIDTH)[0, 2 * i : 2 * i + 2]
        blocks[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cos, sin], [-sin, cos]]
    np.testing.assert_allclose(there, here @ blocks.T, rtol=0, atol=1e-14)
    np.testing.assert_allclose((here * there).sum(axis=1), exact([offset], WIDTH)[0, 1::2].sum(), rtol=1e-13)


def test_rotary_turns_complex_numbers(dtype):
    x = np.random.default_rng(0).normal(size=(len(POSITIONS), WIDTH))
    out = attention.rotary(jnp.asarray(x, dtype), jnp.asarray(POSITIONS, "int32"))
    assert out.dtype == dtype
    code = exact(POSITIONS, WIDTH)
    rotated = (x[:, 0::2] + 1j * x[:, 1::2]) * (code[:, 1::2] + 1j * code[:, 0::2])
    expected = np.stack([rotated.real, rotated.imag], axis=-1).reshape(x.shape)
    np.testing.assert_allclose(out, expected, rtol=0, atol=40 * float(jnp.finfo(dtype).eps))


@pytest.mark.slow
def test_scores_do_not_see_a_common_shift(dtype):
    random = np.random.default_rng(1)
    query, key = (jnp.asarray(random.normal(size=(6, WIDTH)), dtype) for _ in range(2))
    places = jnp.arange(6)

    @jax.jit
    def scores(shift):
        return attention.rotary(query, places + shift) @ attention.rotary(key, places + shift).T

    near = scores(0)
    for shift in (1, 1000, 1_000_000, 2_000_000_000):
        np.testing.assert_allclose(scores(shift), near, rtol=0, atol=100 * float(jnp.finfo(dtype).eps))
    lengths = jnp.linalg.norm(attention.rotary(query, places + 12_345), axis=1)
    np.testing.assert_allclose(lengths, jnp.linalg.norm(query, axis=1), rtol=8 * float(jnp.finfo(dtype).eps))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "uint32"])
def test_the_ends_of_narrow_integers(kind):
    ends = jnp.array([np.iinfo(kind).min, np.iinfo(kind).max], kind)
    np.testing.assert_allclose(attention.sinusoidal(ends, WIDTH), exact(ends, WIDTH), rtol=0, atol=1e-6)


def test_positions_of_64_bits(x64):
    places = jnp.array([2**40 + 12_345, -(2**63), 2**63 - 1])
    for kind, tolerance in (("float32", 1e-6), ("float64", 1e-15)):
        code = attention.sinusoidal(places, WIDTH, dtype=kind)
        assert code.dtype == kind
        np.testing.assert_allclose(code, exact(places, WIDTH), rtol=0, atol=tolerance)


@pytest.mark.usefixtures("as_installed")
def test_numpy_arrays_of_any_width_are_turned():
    x = np.ones((2, 4))
    np.testing.assert_allclose(
        attention.rotary(x, np.array([5, 7])), attention.rotary(jnp.asarray(x), jnp.array([5, 7])), rtol=1e-6
    )


@pytest.mark.slow
def test_narrow_types_and_gradients(key):
    assert attention.sinusoidal(jnp.arange(3), 4, dtype="bfloat16").dtype == jnp.bfloat16
    x = jnp.ones((3, 4), "bfloat16")
    assert attention.rotary(x, jnp.arange(3)).dtype == jnp.bfloat16
    slope = jax.grad(lambda x: jnp.sum(attention.rotary(x, jnp.arange(3)) ** 2))(jnp.ones((3, 4)))
    np.testing.assert_allclose(slope, 2 * np.ones((3, 4)), rtol=1e-5)  # lengths are kept, so is their gradient


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda p, x: attention.sinusoidal(p, 5), ValueError, "`d_model` must be even, got 5"),
        (lambda p, x: attention.sinusoidal(p, 0), ValueError, "`d_model` must be an integer >= 2"),
        (lambda p, x: attention.sinusoidal(p, 4.0), TypeError, "`d_model` must be an integer >= 2"),  # pyright: ignore
        (lambda p, x: attention.sinusoidal(p[None], 4), ValueError, "`positions` must be an array of integers"),
        (lambda p, x: attention.sinusoidal(p.astype(float), 4), TypeError, "`positions` must be an array of integers"),
        (lambda p, x: attention.sinusoidal(np, 4), TypeError, "`positions` must be an array"),  # pyright: ignore
        (lambda p, x: attention.sinusoidal(p, 4, base=0.5), ValueError, "`base` must be >= 1, got 0.5"),
        (lambda p, x: attention.sinusoidal(p, 4, dtype="int32"), TypeError, "`dtype` must be a floating-point dtype"),
        (lambda p, x: attention.sinusoidal(np.array([2**32]), 4), ValueError, "`positions` must fit in int32 unless"),
        (lambda p, x: attention.rotary(x, np.array([2**32] * 3)), ValueError, "`positions` must fit in int32 unless"),
        (lambda p, x: attention.rotary(x[:, :3], p), ValueError, r"`x` must have an even number of features, got"),
        (lambda p, x: attention.rotary(x, p[:2]), ValueError, r"`positions` must have one for each of 3 tokens, got"),
        (lambda p, x: attention.rotary(x.astype(int), p), TypeError, "`x` must be a floating-point array"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call(jnp.arange(3), jnp.ones((3, 4)))


LLAMA3 = Rotary(base=500_000, scaling="llama3", factor=8, original_tokens=64)
YARN = Rotary(scaling="yarn", factor=16, original_tokens=256)
LINEAR = Rotary(scaling="linear", factor=4)
PARTIAL = Rotary(width=6, attention_factor=1.5)


def defined(spec, width):
    """The frequencies by their definitions, wavelength by wavelength, with 40 digits."""
    with mpmath.workdps(40):
        frequencies = []
        for i in range(width // 2):
            own = mpmath.mpf(spec.base) ** (mpmath.mpf(-2 * i) / width)
            if spec.scaling is None:
                kept = mpmath.mpf(1)
            elif spec.scaling == "linear":
                kept = mpmath.mpf(0)
            elif spec.scaling == "llama3":
                wavelength = 2 * mpmath.pi / own
                if wavelength < mpmath.mpf(spec.original_tokens) / spec.high_frequency:
                    kept = mpmath.mpf(1)
                elif wavelength > mpmath.mpf(spec.original_tokens) / spec.low_frequency:
                    kept = mpmath.mpf(0)
                else:
                    rotations = spec.original_tokens / wavelength
                    kept = (rotations - spec.low_frequency) / (spec.high_frequency - spec.low_frequency)
            else:
                ends = [
                    width * mpmath.log(spec.original_tokens / (rotations * 2 * mpmath.pi)) / (2 * mpmath.log(spec.base))
                    for rotations in (spec.fast, spec.slow)
                ]
                low, high = max(mpmath.floor(ends[0]), 0), min(mpmath.ceil(ends[1]), width - 1)
                kept = 1 - min(max((i - low) / (high - low), 0), 1)
            frequencies.append(own * kept + own / spec.factor * (1 - kept))
        return frequencies


@pytest.mark.parametrize("spec", [Rotary(), LINEAR, LLAMA3, YARN], ids=lambda spec: str(spec.scaling))
def test_frequencies_against_many_digits(spec):
    expected = defined(spec, WIDTH)
    np.testing.assert_allclose(spec.frequencies(WIDTH), [float(each) for each in expected], rtol=4e-15)
    plain = np.array(Rotary(base=spec.base).frequencies(WIDTH))
    if spec.scaling in ("llama3", "yarn"):  # the fast ones stay, the slow ones are stretched, some are between
        ratio = np.array(spec.frequencies(WIDTH)) / plain
        assert ratio[0] == 1 and ratio[-1] == 1 / spec.factor and ((ratio < 1) & (ratio > 1 / spec.factor)).any()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("spec", [LINEAR, LLAMA3, YARN], ids=lambda spec: spec.scaling)
def test_frequencies_are_those_of_the_transformers_library(spec):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": spec.scaling, "rope_theta": float(spec.base), "factor": float(spec.factor)}
    if spec.original_tokens is not None:
        parameters["original_max_position_embeddings"] = spec.original_tokens
    if spec.scaling == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = transformers.LlamaConfig(
        hidden_size=2 * WIDTH, num_attention_heads=2, head_dim=WIDTH, rope_parameters=parameters,
        max_position_embeddings=spec.original_tokens or 64,
    )  # fmt: skip
    frequencies, factor = ROPE_INIT_FUNCTIONS[spec.scaling](config, device="cpu")
    np.testing.assert_allclose(spec.frequencies(WIDTH), frequencies.numpy(), rtol=2e-6)
    assert spec.temperature == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("spec", [Rotary(), LLAMA3, YARN, PARTIAL], ids=["plain", "llama3", "yarn", "partial"])
def test_pairs_turn_as_complex_numbers(dtype, spec):
    x = np.random.default_rng(0).normal(size=(2, 70, WIDTH))
    out = rotate(jnp.asarray(x, dtype), spec)
    width = spec.width or WIDTH
    with mpmath.workdps(30):
        angle = [[p * each for each in defined(spec, width)] for p in range(70)]
        rotations = np.array([[complex(mpmath.expjpi(a / mpmath.pi)) for a in row] for row in angle])
    rotated = (x[..., 0:width:2] + 1j * x[..., 1:width:2]) * rotations
    expected = x.copy()
    expected[..., 0:width:2], expected[..., 1:width:2] = rotated.real, rotated.imag
    assert out.dtype == dtype
    np.testing.assert_allclose(out, spec.temperature * expected, rtol=0, atol=60 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": 0.5}, "`base` must be >= 1, got 0.5"),
        ({"width": 3}, "`width` must be even, got 3"),
        ({"scaling": "dynamic"}, "`scaling` must be one of None, 'linear', 'llama3', 'yarn', got 'dynamic'"),
        ({"factor": 2.0}, "`factor` must be 1 without a scaling, got 2.0"),
        ({"scaling": "yarn", "factor": 2.0}, "`original_tokens` must be given for scaling='yarn', got None"),
        ({"scaling": "llama3", "original_tokens": 8, "low_frequency": 4.0}, "`low_frequency` must be below high_freq"),
        ({"scaling": "yarn", "original_tokens": 8, "slow": 40.0}, "`slow` must be below fast=32.0, got 40.0"),
        ({"attention_factor": 0.0}, "`attention_factor` must be > 0, got 0"),
    ],
)
def test_bad_rotations(as_installed, change, message):
    with pytest.raises(ValueError, match=message):
        Rotary(**change)
