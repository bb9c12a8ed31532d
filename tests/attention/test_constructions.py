"""Convolution and message passing as attention, against XLA's convolution and against loops over edges."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention
from rc_jax.attention import constructions, masks

CASES = [  # image, kernel
    ((9, 2), (3, 2, 3)),
    ((3, 2), (8, 2, 1)),  # an even width has more offsets to the right; this one is wider than the image
    ((5, 6, 2), (3, 3, 2, 3)),
]


def draw(shapes, dtype):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape), dtype) for shape in shapes]


def reference(image, kernel, padding):
    """XLA's convolution; a border of copies is made beforehand."""
    dims = image.ndim - 1
    names = ("NWC", "WIO", "NWC") if dims == 1 else ("NHWC", "HWIO", "NHWC")
    if padding == "edge":
        widths = [((width - 1) // 2, width // 2) for width in kernel.shape[:dims]]
        image = jnp.pad(image, [*widths, (0, 0)], mode="edge")
    return jax.lax.conv_general_dilated(
        image[None], kernel, (1,) * dims, "SAME" if padding == "zeros" else "VALID", dimension_numbers=names,
        precision="highest",
    )[0]  # fmt: skip


def test_convolution_is_attention_to_rounding(dtype):
    @jax.jit
    def both(pairs):
        return [
            [(constructions.convolve(x, w, padding=padding), reference(x, w, padding)) for padding in ("zeros", "edge")]
            for x, w in pairs
        ]

    pairs = [draw(shapes, dtype) for shapes in CASES]
    for (image, kernel), results in zip(pairs, both(pairs), strict=True):
        size = float(np.abs(image).max() * np.abs(kernel).max()) * kernel.size / kernel.shape[-1]
        for out, expected in results:
            assert out.dtype == dtype
            np.testing.assert_allclose(out, expected, rtol=0, atol=2 * size * float(jnp.finfo(dtype).eps))


def test_sharp_weights_are_zero_and_one_to_the_bit():
    image, kernel = draw(CASES[2], "float32")
    layer = constructions.convolution_layer(kernel)
    tokens = constructions.convolution_tokens(image, layer.spec)
    weights = np.asarray(attention.attention_weights(layer.params, tokens, layer.spec, scale=256.0))
    assert set(np.unique(weights[:, :30])) == {0, 1}  # the last row is that of the token of zeros
    for head, (down, right) in enumerate(np.ndindex(3, 3)):
        for i, (row, column) in enumerate(np.ndindex(5, 6)):
            at = (row + down - 1, column + right - 1)
            inside = 0 <= at[0] < 5 and 0 <= at[1] < 6
            assert weights[head, i, at[0] * 6 + at[1] if inside else 30] == 1


def test_weights_by_their_law_at_any_sharpness(x64):
    """Rows of a line: e^(−αk²) for the token k away from the wanted one and e^(−α/2) for the token of zeros."""
    kernel = jnp.ones((3, 1, 1), "float64")
    params, spec = constructions.convolution_layer(kernel)
    tokens = constructions.convolution_tokens(jnp.ones((7, 1), "float64"), spec)
    place = np.arange(7)
    for scale in (0.3, 1.0, 8.0):
        weights = attention.attention_weights(params, tokens, spec, scale=scale)
        for head, offset in enumerate((-1, 0, 1)):
            mass = np.exp(-scale * (place[None, :] - place[:, None] - offset) ** 2)
            mass = np.concatenate([mass, np.full((7, 1), np.exp(-scale / 2))], axis=1)
            np.testing.assert_allclose(weights[head, :7], mass / mass.sum(axis=1, keepdims=True), rtol=1e-11)


def test_gradients_are_those_of_the_convolution(x64):
    image, kernel = draw(CASES[0], "float64")
    gradients = jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(constructions.convolve(x, w))), (0, 1)))(image, kernel)
    expected = jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(reference(x, w, "zeros"))), (0, 1)))(image, kernel)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def test_one_trace_for_all_sharpnesses():
    image, kernel = draw(CASES[0], "float32")

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(scale):
        return constructions.convolve(image, kernel, scale=scale)

    errors = [float(jnp.abs(run(scale) - reference(image, kernel, "zeros")).max()) for scale in (2.0, 8.0, 24.0)]
    assert errors == sorted(errors, reverse=True)


def graph():
    """Twelve nodes, about three edges each, symmetric, none alone."""
    random = np.random.default_rng(1)
    upper = np.triu(random.random((12, 12)) < 0.25, 1)
    edges = upper | upper.T
    edges[np.arange(12), (np.arange(12) + 1) % 12] = edges[(np.arange(12) + 1) % 12, np.arange(12)] = True
    return edges


@pytest.mark.parametrize("self_loops", [False, True])
def test_message_passing_is_the_dense_aggregate(dtype, self_loops):
    x, weight = draw(((12, 4), (4, 4)), dtype)
    adjacency = (graph() | (np.eye(12, dtype=bool) & self_loops)).astype(dtype)
    layer = constructions.message_passing_layer(weight)
    mask = masks.graph(adjacency, self_loops=self_loops)
    out = attention.attend(layer.params, x, layer.spec, mask=mask)
    eps = 64 * float(jnp.finfo(dtype).eps)
    degree = adjacency.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out, adjacency / degree @ np.asarray(x) @ np.asarray(weight), rtol=0, atol=eps)
    root = np.sqrt(degree)
    inner = attention.attend(layer.params, x / root, layer.spec, mask=mask)
    symmetric = adjacency / root / root.T @ np.asarray(x) @ np.asarray(weight)
    np.testing.assert_allclose(root * inner, symmetric, rtol=0, atol=eps)
    assert np.abs((adjacency / root / root.T).sum(axis=1) - 1).max() > 0.05  # no softmax has such rows


@pytest.mark.usefixtures("as_installed")
def test_numpy_arrays_of_double_precision_without_it():
    image, kernel = np.arange(10.0).reshape(5, 2), np.ones((3, 2, 4))
    out = constructions.convolve(image, kernel)
    np.testing.assert_array_equal(out, constructions.convolve(jnp.asarray(image), jnp.asarray(kernel)))
    assert constructions.message_passing_layer(np.eye(2)).params.value.dtype == jnp.float32


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    image, kernel = jnp.ones((5, 2)), jnp.ones((3, 2, 4))
    with pytest.raises(ValueError, match=r"`kernel` must have an axis for each of `image`'s, and its 1 channels"):
        constructions.convolve(jnp.ones((5, 1)), kernel)
    with pytest.raises(ValueError, match=r"`kernel` must have an axis for each of `image`'s"):
        constructions.convolve(jnp.ones((5, 5, 2)), kernel)
    with pytest.raises(TypeError, match=r"`kernel` must be a floating-point array .* got int32\[3,2,4\]"):
        constructions.convolution_layer(kernel.astype(int))
    with pytest.raises(ValueError, match=r"`kernel` must be .* got float32\[3,4\]"):
        constructions.convolution_layer(kernel[:, 0])
    with pytest.raises(ValueError, match=r"`kernel` must be .* none of them 0, got float32\[0,2,4\]"):
        constructions.convolution_layer(kernel[:0])
    with pytest.raises(ValueError, match="`padding` must be one of 'zeros', 'edge', got 'wrap'"):
        constructions.convolve(image, kernel, padding="wrap")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`scale` must be > 0, got 0"):
        constructions.convolve(image, kernel, scale=0)
    with pytest.raises(TypeError, match="`image` must be a floating-point array"):
        constructions.convolution_tokens(jnp.ones((5, 2), int), constructions.convolution_layer(kernel).spec)
    with pytest.raises(ValueError, match="`image` must have at most 4 channels for `spec`"):
        constructions.convolution_tokens(jnp.ones((5, 5)), constructions.convolution_layer(kernel).spec)
    with pytest.raises(ValueError, match="`image` must be so small that bfloat16 holds squared distances exactly"):
        constructions.convolve(jnp.ones((64, 2), "bfloat16"), kernel.astype("bfloat16"))
    with pytest.raises(TypeError, match=r"`x` must have the dtype of `params\.query`"):
        constructions.convolve(image.astype("bfloat16")[:3], kernel)
    with pytest.raises(ValueError, match=r"`weight` must be a square matrix, got float32\[3,2\]"):
        constructions.message_passing_layer(jnp.ones((3, 2)))
