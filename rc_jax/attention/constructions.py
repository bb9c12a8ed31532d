"""Convolution and message passing as attention: layers whose weights are built, not learned, and equal them."""

import itertools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments
from rc_jax.attention.layer import attend
from rc_jax.attention.specification import AttentionParams, AttentionSpec

Padding = Literal["zeros", "edge"]


class Layer(NamedTuple):
    """Parameters built for a purpose, with the specification that they belong to."""

    params: AttentionParams
    spec: AttentionSpec


def _one_or_two_dimensional(*shapes: str) -> arguments.Check:
    """A check for a floating-point array of one of two shapes, without an empty axis."""
    return arguments.must(
        f"a floating-point array of shape {' or '.join(shapes)}, none of them 0",
        lambda value: value.ndim in [shape.count(",") + 1 for shape in shapes] and value.size,
        right=lambda value: isinstance(value, jax.Array | np.ndarray) and jnp.issubdtype(value.dtype, jnp.floating),
    )


_check_kernel = _one_or_two_dimensional("(width, in, out)", "(height, width, in, out)")
_check_image = _one_or_two_dimensional("(column, channel)", "(row, column, channel)")


@arguments.guard(kernel=_check_kernel)
def convolution_layer(kernel: Float[Array, "*width channel filter"]) -> Layer:
    """The attention layer that convolves with `kernel`: one head for each of its offsets, sharp relative scores.

    Head δ gives query i and key j the score −|j − i − δ|², linear in the code (1, i, |i|²) of either position: the
    query is (−1, 2(i + δ), −|i + δ|², −½) and the key (|j|², j, 1, 0). So 0 for the key at offset δ, and −1 or less
    for all others; `scale` multiplies that gap. The head's value is the key's channels, its output the kernel's slice
    of that offset. A token of zeros whose key is (0, 0, 0, 1) has score −½ in every row: with it, a query whose offset
    leaves the image takes nothing. Without it, it takes the nearest token.

    Args:
        kernel: in one or two dimensions, of any width; offset 0 is at (width − 1)//2, where `lax.conv_general_dilated`
            has it with `padding="SAME"`. Not flipped, as there.

    Returns:
        The layer, for tokens of `convolution_tokens`. Apply it with `scale` = α: weights are off by about e^(−α/2) with
        the token of zeros and by 2 dims e^(−α) without. They are one-hot to the bit from where that is below the
        smallest number: α = 256 in float32 and 2048 in float64.

    Source: Cordonnier et al. 2020, "On the relationship between self-attention and convolutional layers", Theorem 1 and
    Lemma 2, with relative codes; the absolute form, and the token of zeros, are this package's.

    Example:
        >>> layer = convolution_layer(jnp.ones((3, 1, 1)))
        >>> x = convolution_tokens(jnp.array([[1.0], [2.0], [4.0]]), layer.spec)
        >>> attend(layer.params, x, layer.spec, scale=256)[:3, 0].tolist()
        [3.0, 7.0, 6.0]
    """
    # Features: channels (or filters), then the code (1, i, |i|², zeros) of a position.
    kernel = jnp.asarray(kernel)
    *widths, channels, filters = kernel.shape
    dims, both = len(widths), max(channels, filters)
    codes, kind = dims + 3, kernel.dtype
    query = np.zeros((int(np.prod(widths)), both + codes, max(channels, codes)))
    key, value = np.zeros(query.shape), np.zeros(query.shape)
    one, position, square, zeros = both, range(both + 1, both + 1 + dims), both + 1 + dims, both + 2 + dims
    # Queries (−1, 2(i + δ), −|i + δ|², −½), linear in the code of i; |i + δ|² = |i|² + 2 δ·i + |δ|².
    for head, at in enumerate(itertools.product(*map(range, widths))):
        offset = np.array(at) - (np.array(widths) - 1) // 2
        query[head, one, :codes] = [-1, *(2 * offset), -(offset @ offset), -0.5]
        query[head, position, 1 + np.arange(dims)] = 2
        query[head, position, 1 + dims] = -2 * offset
        query[head, square, 1 + dims] = -1
    # Keys (|j|², j, 1, 0), and (0, 0, 0, 1) of the token of zeros. Values are channels, outputs slices of the kernel.
    key[:, square, 0] = 1
    key[:, position, 1 + np.arange(dims)] = 1
    key[:, one, 1 + dims] = 1
    key[:, zeros, 2 + dims] = 1
    value[:, :channels, :channels] = np.eye(channels)
    output = jnp.zeros((query.shape[0], query.shape[2], query.shape[1]), kind)
    output = output.at[:, :channels, :filters].set(jnp.reshape(kernel, (-1, channels, filters)))
    spec = AttentionSpec(d_model=query.shape[1], heads=query.shape[0], d_head=query.shape[2])
    return Layer(
        AttentionParams(jnp.asarray(query, kind), jnp.asarray(key, kind), jnp.asarray(value, kind), output), spec
    )


@arguments.guard(image=_check_image)
def convolution_tokens(
    image: Float[Array, "*place channel"], spec: AttentionSpec, *, padding: Padding = "zeros"
) -> Float[Array, "token feature"]:
    """The tokens of an image for `convolution_layer`: channels, then the code (1, i, |i|², 0) of each position.

    Positions count from the middle, so that their squares stay small.

    Args:
        image: (column, channel) or (row, column, channel), of the kernel's dimension.
        spec: of the layer.
        padding: the values beyond the border. `zeros`: one more token, the last, stands for all that is outside, and
            its own output means nothing. `edge`: no such token; the nearest one in the image is used there.

    Raises:
        ValueError: an image so large that squared distances are not exact integers in its dtype.

    Example:
        >>> spec = convolution_layer(jnp.ones((3, 1, 1))).spec
        >>> convolution_tokens(jnp.array([[1.0], [2.0], [4.0]]), spec).astype(int).tolist()
        [[1, 1, -1, 1, 0], [2, 1, 0, 0, 0], [4, 1, 1, 1, 0], [0, 0, 0, 0, 1]]
    """
    # The image must have no more channels than the layer, and squared distances must be exact.
    image = jnp.asarray(image)
    *extents, channels = image.shape
    dims = len(extents)
    if channels > spec.d_model - dims - 3:
        raise ValueError(
            f"`image` must have at most {spec.d_model - dims - 3} channels for `spec`, got {arguments.describe(image)}"
        )
    if sum(extent**2 for extent in extents) > 1 / float(jnp.finfo(image.dtype).eps):
        raise ValueError(
            f"`image` must be so small that {image.dtype} holds squared distances exactly, got shape {image.shape}"
        )
    # One token a position: channels, zeros, and the code; then the token of zeros.
    axes = [np.arange(extent) - extent // 2 for extent in extents]
    positions = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, dims)
    count = len(positions)
    code = np.concatenate(
        [np.ones((count, 1)), positions, (positions**2).sum(axis=1, keepdims=True), np.zeros((count, 1))], axis=1
    )
    gap = jnp.zeros((count, spec.d_model - dims - 3 - channels), image.dtype)
    tokens = jnp.concatenate([jnp.reshape(image, (count, channels)), gap, jnp.asarray(code, image.dtype)], axis=1)
    if padding == "edge":
        return tokens
    return jnp.concatenate([tokens, jnp.zeros((1, spec.d_model), image.dtype).at[0, -1].set(1)])


@arguments.guard(image=_check_image, kernel=_check_kernel, scale=arguments.positive)
def convolve(
    image: Float[Array, "*place channel"],
    kernel: Float[Array, "*width channel filter"],
    *,
    scale: ArrayLike | None = None,
    padding: Padding = "zeros",
) -> Float[Array, "*place filter"]:
    """Convolution, stride 1 and as many outputs as inputs, done by the attention layer of `convolution_layer`.

    Args:
        image: (column, channel) or (row, column, channel).
        kernel: (width, channel, filter) or (height, width, channel, filter).
        scale: α, how sharp the scores are; traced. By default a power of two (so that the scores are exact) at which
            all weights are 0 or 1.
        padding: as in `convolution_tokens`.

    Example:
        >>> convolve(jnp.array([[1.0], [2.0], [4.0]]), jnp.ones((3, 1, 1)), padding="edge")[:, 0].tolist()
        [4.0, 7.0, 10.0]
    """
    if kernel.ndim != image.ndim + 1 or kernel.shape[-2] != image.shape[-1]:
        raise ValueError(
            f"`kernel` must have an axis for each of `image`'s, and its {image.shape[-1]} channels, "
            f"got {arguments.describe(kernel)}"
        )
    image = jnp.asarray(image)
    params, spec = convolution_layer(kernel)
    one_hot = 2.0 ** np.ceil(np.log2(-4 * np.log(float(jnp.finfo(image.dtype).tiny))))
    sharp = float(one_hot) if scale is None else scale
    out = attend(params, convolution_tokens(image, spec, padding=padding), spec, scale=sharp)
    count, filters = int(np.prod(image.shape[:-1])), kernel.shape[-1]
    return jnp.reshape(out[:count, :filters], (*image.shape[:-1], filters))


@arguments.guard(weight=arguments.float_array("feature", "out"))
def message_passing_layer(weight: Float[Array, "feature feature"]) -> Layer:
    """The attention layer that averages over neighbours: under the mask A of a graph it computes D⁻¹A X W.

    Its queries are zero, so a token weighs all that it sees alike. D is the row sums of A. The rows of its weights sum
    to 1, as those of every softmax do; an aggregate with other row sums takes the layer between two diagonal factors.
    Kipf & Welling's D^(−½) A D^(−½) X W (2017, eq. 2) is D^(½) · layer(D^(−½) X).

    Args:
        weight: W, square.

    Returns:
        The layer; apply it with `mask=masks.graph(adjacency)`.

    Example:
        >>> from rc_jax.attention import masks
        >>> layer = message_passing_layer(jnp.eye(1))
        >>> path = masks.graph(jnp.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]), self_loops=False)
        >>> attend(layer.params, jnp.array([[1.0], [2.0], [4.0]]), layer.spec, mask=path)[:, 0].tolist()
        [2.0, 2.5, 2.0]
    """
    if weight.shape[0] != weight.shape[1]:
        raise ValueError(f"`weight` must be a square matrix, got {arguments.describe(weight)}")
    weight = jnp.asarray(weight)
    zeros, unit = jnp.zeros_like(weight)[None], jnp.eye(weight.shape[0], dtype=weight.dtype)[None]
    return Layer(AttentionParams(zeros, zeros, weight[None], unit), AttentionSpec(d_model=weight.shape[0]))
