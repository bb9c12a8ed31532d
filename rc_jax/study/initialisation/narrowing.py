"""At which width a design is computed, and how far that is from its own."""

from typing import NamedTuple

from rc_jax.study.initialisation.design import Design

HEAD = 16  # features of a head: the fewest
TOKEN = 384  # features of a token: the fewest but for one halving
SECONDS = 1.5  # for one initialisation: what takes longer is computed narrower
PRODUCTS = 1.6e11  # multiplications and additions in a second
NORMALS = 6e7  # matrix entries drawn in a second, for both ways
WEIGHTS = 7e7  # entries of attention matrices in a second, forwards and back


class Width(NamedTuple):
    """Features of a token and of a head."""

    token: int
    head: int


def seconds(design: Design, width: Width, count: int) -> float:
    """About how long one initialisation takes."""
    spec, heads, d = design.spec, design.spec.attention.heads, width.token
    entries = 4 * d * heads * width.head
    if spec.mlp is not None:
        hidden = spec.mlp.width * d / spec.attention.d_model
        maps = 1 if spec.mlp.experts is None else spec.mlp.experts.count
        entries += (3 if spec.mlp.gated else 2) * d * hidden * maps
    products = 4 * (2 * count * entries + 4 * heads * count**2 * width.head)
    return spec.depth * (products / PRODUCTS + entries / NORMALS + heads * count**2 / WEIGHTS)


def halved(width: Width) -> Width:
    """Half as wide: heads and tokens together, or tokens alone where heads are narrow."""
    head = width.head if width.head <= HEAD else max(HEAD, _even(width.head / 2))
    return Width(_even(width.token / 2), head)


def compared(design: Design, width: Width) -> Width | None:
    """The width with which a narrower network is compared: half of all that is narrower than in the design.

    None where something is too narrow to be halved, so that nothing would tell what its width changes.
    """
    head = width.head if width.head == design.spec.attention.head_width else _even(width.head / 2)
    token = _even(width.token / 2)
    same = head == width.head != design.spec.attention.head_width
    return None if same or token >= width.token else Width(token, head)


def chosen(design: Design, count: int) -> Width:
    """The full width, or the first of its halves that takes few seconds, down to the narrowest."""
    width = Width(design.spec.attention.d_model, design.spec.attention.head_width)
    while seconds(design, width, count) > SECONDS and (width.head > HEAD or width.token >= 2 * TOKEN):
        width = halved(width)
    return width


def _even(value: float) -> int:
    """The even number that is nearest; kinds of two maps and rotations need one."""
    return max(2, 2 * round(value / 2))
