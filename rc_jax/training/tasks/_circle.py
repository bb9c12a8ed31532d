"""Two points that go round a circle, and a model that is fed its own answers."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments


@arguments.guard(points=(arguments.integer(4), *arguments.even), radius=arguments.scalar(arguments.positive))
def circle(
    points: int = 1000, radius: ArrayLike = 0.3
) -> tuple[Float[Array, "pair token coordinate"], Float[Array, "pair token coordinate"]]:
    """Pairs of opposite points of a circle and, as labels, the points that follow them counter-clockwise.

    Point j is r(cos θ_j, sin θ_j), θ_j = 2πj/points. Pair i is (point i, point i + points/2), its label the pair i + 1:
    the first token runs over the upper half from (r, 0), the second over the lower half from (−r, 0).

    Args:
        points: on the whole circle; an even number of at least 4.
        radius: r; may be traced.

    Returns:
        Pairs and labels, both (points/2, 2, 2): pair, token, coordinate.

    Source: Dong, Cordonnier & Loukas 2021, section 4, the experiment on circular arcs.

    Example:
        >>> pairs, following = circle(points=8, radius=1.0)
        >>> pairs.shape, bool((pairs[1:] == following[:-1]).all())
        ((4, 2, 2), True)
        >>> [[round(float(number), 3) + 0.0 for number in point] for point in following[0]]
        [[0.707, 0.707], [-0.707, -0.707]]
    """
    angles = jnp.arange(points // 2 + 1, dtype=float) * (2 * math.pi / points)
    first = jnp.asarray(radius, float) * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    both = jnp.stack([first, -first], axis=1)
    return both[:-1], both[1:]


@arguments.guard()
def roll_out(
    model: Callable[[Array], Array], start: Float[Array, "token coordinate"], steps: int
) -> Float[Array, "time token coordinate"]:
    """Feed a model of the next points its own answers: x, f(x), f(f(x)) and so on.

    Args:
        model: f, from tokens to tokens of the same shape and dtype.
        start: x.
        steps: how often f is applied.

    Returns:
        `start` and the `steps` answers after it. They are not finite where the model diverges.

    Example:
        >>> import jax.numpy as jnp
        >>> roll_out(lambda x: x / 2, jnp.array([[8.0, 4.0]]), 3)[:, 0, 0].tolist()
        [8.0, 4.0, 2.0, 1.0]
    """
    answer = jax.eval_shape(model, start)
    if (answer.shape, answer.dtype) != (start.shape, start.dtype):
        raise ValueError(
            f"`model` must answer with the shape and dtype of `start`, {arguments.describe(start)}, "
            f"got {answer.dtype}{list(answer.shape)}"
        )

    def step(x: Array, _: None) -> tuple[Array, Array]:
        out = model(x)
        return out, out

    return jnp.concatenate([start[None], jax.lax.scan(step, start, length=steps)[1]])
