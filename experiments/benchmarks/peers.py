"""The same networks in other people's tools: plain PyTorch, one by one and by `torch.func.vmap`, and plain NumPy.

Each side is written as its users would write it, with what its tool offers: one product for queries, keys and values,
heads as a batch axis, `scaled_dot_product_attention`, no gradients, weights drawn when their layer's turn comes and
forgotten after it. All compute log ‖res(X^l)‖_F before the first layer and after each one, in plain arithmetic.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from rc_jax import network


class Weights(NamedTuple):
    """Of L layers with H heads of width k: queries, keys and values side by side, head by head; and the output."""

    inner: Any  # (L, d, 3·H·k)
    output: Any  # (L, H·k, d)


Draw = Callable[[int], tuple[Any, Any]]  # the inner and output weights of a layer


def side_by_side(params: network.LayerParams) -> Weights:
    """Our weights in the peers' layout, as NumPy arrays; a leading axis of networks is kept."""
    layers = params.attention

    def flat(weight: Any) -> np.ndarray:  # (…, head, feature, width) to (…, feature, head·width)
        moved = np.moveaxis(np.asarray(weight), -3, -2)
        return moved.reshape(*moved.shape[:-2], -1)

    inner = np.concatenate([flat(weight) for weight in (layers.query, layers.key, layers.value)], axis=-1)
    output = np.asarray(layers.output)
    return Weights(inner, output.reshape(*output.shape[:-3], -1, output.shape[-1]))


def numpy_logs(draw: Draw, x: np.ndarray, heads: int, depth: int) -> np.ndarray:
    """One network in NumPy, with SciPy's softmax."""
    logs = [np.log(np.linalg.norm(x - x.mean(axis=0)))]
    for layer in range(depth):
        inner, output = draw(layer)
        query, key, value = (x @ inner).reshape(len(x), 3, heads, -1).transpose(1, 2, 0, 3)
        weights = special.softmax(query @ key.transpose(0, 2, 1) * query.dtype.type(query.shape[-1] ** -0.5), axis=-1)
        x = (weights @ value).transpose(1, 0, 2).reshape(len(x), -1) @ output
        logs.append(np.log(np.linalg.norm(x - x.mean(axis=0))))
    return np.array(logs)


def numpy_drawn(x: np.ndarray, heads: int, depth: int, inner: int, count: int, seed: int = 0) -> np.ndarray:
    """`count` networks one after the other, with NumPy's default generator; heads together `inner` wide."""
    generator, d = np.random.default_rng(seed), x.shape[-1]

    def draw(layer: int) -> tuple[np.ndarray, np.ndarray]:
        del layer
        first, last = (generator.standard_normal(shape, np.float32) for shape in ((d, 3 * inner), (inner, d)))
        return first * np.float32(d**-0.5), last * np.float32(inner**-0.5)

    return np.stack([numpy_logs(draw, x, heads, depth) for _ in range(count)])


def numpy_given(weights: Weights, x: np.ndarray, heads: int) -> np.ndarray:
    """Networks whose weights are given, one after the other."""

    def one(inner: np.ndarray, output: np.ndarray) -> np.ndarray:
        return numpy_logs(lambda layer: (inner[layer], output[layer]), x, heads, len(inner))

    return np.stack([one(*pair) for pair in zip(*weights, strict=True)])


def torch_logs(draw: Draw, x: Any, heads: int, depth: int) -> Any:
    """One network in PyTorch; under `torch.func.vmap`, many."""
    torch = _torch()
    logs = [(x - x.mean(dim=0)).norm().log()]
    for layer in range(depth):
        inner, output = draw(layer)
        query, key, value = (x @ inner).reshape(len(x), 3, heads, -1).permute(1, 2, 0, 3)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        x = mixed.transpose(0, 1).reshape(len(x), -1) @ output
        logs.append((x - x.mean(dim=0)).norm().log())
    return torch.stack(logs)


def torch_drawn(
    x: np.ndarray, heads: int, depth: int, inner: int, count: int, together: int = 1, seed: int = 0
) -> np.ndarray:
    """`count` networks, `together` at a time: 1 is a loop, more are `torch.func.vmap`."""
    torch, (tokens,), d = _torch(), tensors(x), x.shape[-1]
    torch.manual_seed(seed)

    def draw(layer: int) -> tuple[Any, Any]:
        del layer
        first, last = (torch.randn(shape, device=tokens.device) for shape in ((d, 3 * inner), (inner, d)))
        return first * d**-0.5, last * inner**-0.5

    with torch.inference_mode():
        if together == 1:
            return np.stack([torch_logs(draw, tokens, heads, depth).cpu().numpy() for _ in range(count)])
        batched = torch.func.vmap(lambda _: torch_logs(draw, tokens, heads, depth), randomness="different")
        chunks = [torch.zeros(min(together, count - start)) for start in range(0, count, together)]
        return np.concatenate([batched(chunk).cpu().numpy() for chunk in chunks])


def torch_given(weights: Weights, x: Any, heads: int, together: int = 1) -> np.ndarray:
    """Networks whose weights are given as tensors, `together` at a time."""
    torch = _torch()

    def one(inner: Any, output: Any) -> Any:
        return torch_logs(lambda layer: (inner[layer], output[layer]), x, heads, len(inner))

    with torch.inference_mode():
        if together == 1:
            return np.stack([one(*pair).cpu().numpy() for pair in zip(*weights, strict=True)])
        batched = torch.func.vmap(one)
        chunks = zip(*(weight.split(together) for weight in weights), strict=True)
        return np.concatenate([batched(*chunk).cpu().numpy() for chunk in chunks])


def tensors(*arrays: np.ndarray) -> tuple[Any, ...]:
    """NumPy's arrays as PyTorch's, on a GPU where PyTorch has one."""
    torch = _torch()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return tuple(torch.as_tensor(np.array(array), device=device) for array in arrays)


def _torch() -> Any:
    """PyTorch, which only the peers need: `pip install -e ".[bench]"`."""
    return importlib.import_module("torch")
