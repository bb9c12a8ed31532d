"""The contests: what is timed, against whom, and how the sides' numbers are compared first.

A bound is timed in the same rounds as the sides: only the matrix products, or only the products and exponentials, that
a side cannot do without. It returns nothing that can be compared.
"""

import functools
import math
import timeit
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg
from scipy import optimize, special

from experiments.benchmarks import peers
from rc_jax import attention, collapse, diagnostics, ensemble, network, scale, sparsity
from rc_jax.special import lambert_w0, log_bessel_i

Side = Callable[[], np.ndarray]
LOOP, VMAP, NUMPY = "PyTorch, a loop", "PyTorch, torch.func.vmap", "NumPy and SciPy, a loop"
PLAIN, EXACT, WIDTH_FREE = "rc_jax, plain arithmetic", "rc_jax, cancellation-free arithmetic", "rc_jax, width-free"
SEEN = 3  # depths at which float32 still sees the residual in plain arithmetic: before the first layer and after two
SHARED = ("sparsity", "relative_entropy", "participation", "largest_weight", "sink_weight")


@dataclass(frozen=True)
class Contest:
    """Sides that compute the same numbers, equal by `agree`; a call does `work` units, a bound as many as it says.

    Ratios are taken of the first side that runs.
    """

    title: str
    unit: str
    work: float
    sides: Mapping[str, Side]
    agree: Callable[[np.ndarray, np.ndarray], None]
    bounds: Mapping[str, tuple[float, Callable[[], object]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers that are measured once."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str | float, ...]]


def close(rtol: float) -> Callable[[np.ndarray, np.ndarray], None]:
    """Numbers that differ by roundings alone."""
    return functools.partial(np.testing.assert_allclose, rtol=rtol)


def same_law(drawn: np.ndarray, expected: np.ndarray) -> None:
    """Samples along the first axis: means within six standard errors, beside a part in a hundred for few samples."""
    gap = np.abs(drawn.mean(0) - expected.mean(0))
    error = np.sqrt(drawn.var(0, ddof=1) / len(drawn) + expected.var(0, ddof=1) / len(expected))
    assert np.all(gap <= 6 * error + 0.01 * np.abs(expected.mean(0))), f"means differ by {gap}, errors {error}"


# Networks


@dataclass(frozen=True)
class Shape:
    """`spec` on `tokens` tokens; peers batch `together`."""

    name: str
    spec: network.StackSpec
    tokens: int
    together: int

    @property
    def words(self) -> str:
        """For titles."""
        layer = self.spec.attention
        return f"{self.name} (d={layer.d_model:,}, H={layer.heads}, L={self.spec.depth}, n={self.tokens})"

    @property
    def inner(self) -> int:
        """The width of all heads together."""
        return self.spec.attention.heads * self.spec.attention.head_width

    @property
    def operations(self) -> float:
        """Multiplications and additions of one forward pass: projections, scores, and rows times values."""
        n, d = self.tokens, self.spec.attention.d_model
        return self.spec.depth * (2.0 * n * d * 4 * self.inner + 4.0 * n**2 * self.inner)

    def input(self) -> jax.Array:
        """The tokens that every network gets."""
        return jax.random.normal(jax.random.key(1), (self.tokens, self.spec.attention.d_model))


def _shape(name: str, d_model: int, heads: int, tokens: int, together: int, d_head: int | None = None) -> Shape:
    layer = attention.AttentionSpec(d_model=d_model, heads=heads, d_head=d_head)
    return Shape(name, network.StackSpec(attention=layer, depth=12), tokens, together)


SMALL, BASE = _shape("small", 64, 4, 32, 256), _shape("base", 768, 12, 128, 4)
WIDTHS = {width: _shape("wide", width, 12, 128, 4, d_head=64) for width in (256, 3072, 12_288)}
GPT3 = replace(_shape("GPT-3's width", 12_288, 96, 128, 1), spec=network.StackSpec(
    attention=attention.AttentionSpec(d_model=12_288, heads=96), depth=96, skip=True,
))  # fmt: skip


def plain(params: network.Layers, x: jax.Array, spec: network.StackSpec) -> jax.Array:
    """The logarithms of ‖X − mean(X)‖_F before the first layer and after each; noise from the third on."""
    states = network.hidden_states(params, x, spec)
    return jnp.log(jnp.linalg.norm(states - states.mean(axis=1, keepdims=True), axis=(1, 2)))


def networks(shape: Shape, count: int) -> network.LayerParams:
    """So many networks' weights."""
    return jax.jit(jax.vmap(lambda key: network.init(key, shape.spec)))(jax.random.split(jax.random.key(0), count))


def drawn(shape: Shape, count: int, left_out: tuple[str, ...] = ()) -> Contest:
    """Networks whose weights are drawn; equal in law, as each side has its own generator."""
    x, spec = shape.input(), shape.spec
    sizes = (np.asarray(x), spec.attention.heads, spec.depth, shape.inner, count)

    def ours(fn: Callable[[jax.Array], jax.Array]) -> Side:
        return lambda: np.asarray(ensemble.run(fn, jax.random.key(0), count))[:, :SEEN]

    sides: dict[str, Side] = {
        LOOP: lambda: peers.torch_drawn(*sizes)[:, :SEEN],
        VMAP: lambda: peers.torch_drawn(*sizes, together=shape.together)[:, :SEEN],
        NUMPY: lambda: peers.numpy_drawn(*sizes)[:, :SEEN],
        PLAIN: ours(lambda key: plain(network.random_layers(key, spec), x, spec)),
        EXACT: ours(lambda key: collapse.log_residuals(network.random_layers(key, spec), x, spec)),
        WIDTH_FREE: ours(functools.partial(collapse.sample_log_residuals, x=x, spec=spec)),
    }
    kept = {name: side for name, side in sides.items() if name not in left_out}
    return Contest(f"weights drawn, {shape.words}", "networks/s", count, kept, same_law)


def initialisations(count: int) -> Iterator[Contest]:
    """Weights drawn, at a small shape and at that of BERT-base."""
    yield drawn(SMALL, count)
    yield drawn(BASE, max(2, count // 64))


def direct(count: int) -> Iterator[Contest]:
    """Weights given, in plain arithmetic, at both shapes."""
    yield given(SMALL, min(256, count))
    yield given(BASE, max(2, count // 64))


def given(shape: Shape, count: int) -> Contest:
    """All on the same weights, so network by network the same numbers; the bound is large products alone."""
    x, heads, weights = shape.input(), shape.spec.attention.heads, networks(shape, count)
    theirs = peers.side_by_side(weights)
    made = functools.cache(lambda: peers.tensors(*theirs, np.asarray(x)))  # at the first call: PyTorch may be missing
    # One network to a call, the devices by turns: XLA does a product of a matrix for each network worse than the same
    # products one after the other.
    compiled, devices = jax.jit(lambda params: plain(params, x, shape.spec)), jax.local_devices()
    parts = [
        jax.device_put(jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), weights), devices[i % len(devices)])
        for i in range(count)
    ]

    def in_torch(together: int) -> np.ndarray:
        inner, output, tokens = made()
        return peers.torch_given(peers.Weights(inner, output), tokens, heads, together)[:, :SEEN]

    sides: dict[str, Side] = {
        LOOP: lambda: in_torch(1),
        VMAP: lambda: in_torch(shape.together),
        NUMPY: lambda: peers.numpy_given(theirs, np.asarray(x), heads)[:, :SEEN],
        PLAIN: lambda: np.stack(jax.device_get([compiled(part) for part in parts]))[:, :SEEN],
    }
    return Contest(f"weights given, {shape.words}", "networks/s", count, sides, close(1e-3), products(shape))


def products(shape: Shape) -> dict[str, tuple[float, Callable[[], object]]]:
    """One product of large square matrices, in units of a network's operations."""
    size = 2048 if jax.default_backend() == "cpu" else 8192
    square, product = jnp.ones((size, size)), jax.jit(lambda a: jnp.matmul(a, a, precision="highest"))
    work = 2.0 * size**3 / shape.operations
    return {"bound: as many operations in large products": (work, lambda: product(square).block_until_ready())}


def width_free(count: int) -> Iterator[Contest]:
    """Widths from 256 to 12 288 with heads of one width together; then one network of GPT-3's depth and width."""
    for width, shape in list(WIDTHS.items())[: None if count >= 64 else 1]:
        yield drawn(shape, max(2, min(count // 64, 6144 // width)), left_out=(NUMPY, EXACT))
    if count >= 64:
        yield deep(GPT3)


def deep(shape: Shape) -> Contest:
    """One network with all its layers and skips, in coordinates: no weight is held."""
    x, spec = shape.input(), shape.spec
    one = jax.jit(lambda key: collapse.sample_log_residuals(key, x, spec))
    side = {WIDTH_FREE: lambda: np.asarray(one(jax.random.key(0)))}
    return Contest(f"one network with skips, {shape.words}", "networks/s", 1, side, close(0))


# Scales


def scale_grid(count: int) -> Iterator[Contest]:
    """The best scale for n = 40·(1..500), Gaussian and cosine scores, in double precision; `count` ≥ 500 has all n."""
    sizes, dim = 40.0 * np.arange(1, min(count, 500) + 1), 128

    def gaussian(alpha: float, n: float) -> float:  # α(1 − e^{α²}/n) (Su Jianlin, kexue.fm/archives/9812)
        return alpha * (1 - np.exp(alpha**2) / n)

    def cosine(alpha: float, n: float) -> float:  # α(1 − M(2α)/(n M(α)²)), M(α) ∝ I_ν(α)/α^ν, ν = d/2 − 1
        order = dim / 2 - 1

        def log_moment(alpha: float) -> float:
            return order * np.log(2 / alpha) + special.gammaln(order + 1) + np.log(special.ive(order, alpha)) + alpha

        return alpha * (1 - np.exp(log_moment(2 * alpha) - 2 * log_moment(alpha)) / n)

    def scipy_loop(objective: Callable[[float, float], float], low: float, high: float) -> np.ndarray:
        def best(n: float) -> Any:
            return optimize.minimize_scalar(lambda a: -objective(a, n), bounds=(low, high), options={"xatol": 1e-7})

        return np.array([best(n).x for n in sizes])

    def ours(find: Callable[[jax.Array], jax.Array]) -> Side:
        compiled = jax.jit(find)

        def side() -> np.ndarray:
            with jax.enable_x64(True):
                return np.asarray(compiled(sizes))

        return side

    by_gauss: dict[str, Side] = {
        "SciPy, a loop over minimize_scalar": lambda: scipy_loop(gaussian, 0.1, 10.0),
        "SciPy, Lambert W in one call": lambda: np.sqrt(special.lambertw(sizes * np.exp(0.5) / 2).real - 0.5),
        "rc_jax.scale.optimal_scale": ours(scale.optimal_scale),
        "rc_jax.scale.optimal_scale_exact": ours(scale.optimal_scale_exact),
    }
    yield Contest(f"Gaussian scores, {len(sizes)} values of n", "scales/s", len(sizes), by_gauss, close(1e-6))
    by_cosine: dict[str, Side] = {
        "SciPy, a loop over minimize_scalar": lambda: scipy_loop(cosine, 1.0, 100.0),
        "rc_jax.scale.optimal_scale": ours(lambda n: scale.optimal_scale(n, dim)),
    }
    yield Contest(f"cosine scores, d={dim}, {len(sizes)} values of n", "scales/s", len(sizes), by_cosine, close(1e-6))


# Diagnosis


def diagnosis(count: int) -> Iterator[Contest]:
    """Weights of 12 layers, 12 heads and 1024 tokens; then queries and keys of one head, up to 131 072 tokens."""
    yield weights(min(12, max(1, 12 * count // 512)))
    longest = 256 * count
    yield streaming(longest // 16)
    yield streaming(longest, left_out=True)


def weights(layers: int, heads: int = 12, tokens: int = 1024) -> Contest:
    """Softmax of Gaussian logits under a causal mask, in float32."""
    logits = np.random.default_rng(0).standard_normal((layers, heads, tokens, tokens), np.float32)
    logits[..., ~np.tri(tokens, dtype=bool)] = -np.inf
    p = special.softmax(logits, axis=-1)

    def ours() -> np.ndarray:
        measures = diagnostics.attention(p)
        return np.stack([measures[name] for name in SHARED])

    def with_spectrum() -> np.ndarray:
        for matrix in p.reshape(-1, tokens, tokens):
            scipy.sparse.linalg.svds(matrix, k=2, return_singular_vectors=False)
        return of_rows(p)

    sides: dict[str, Side] = {
        "NumPy, rows and sinks alone": lambda: of_rows(p),
        "NumPy, and SciPy's svds for two singular values": with_spectrum,
        "rc_jax.diagnostics.attention": ours,
    }
    return Contest(f"weights ({layers}, {heads}, {tokens}, {tokens}), float32", "layers/s", layers, sides, close(1e-4))


def of_rows(p: np.ndarray) -> np.ndarray:
    """The shared measures of causal weights in NumPy, a layer at a time: (measure, layer, head)."""
    keys = np.arange(2, p.shape[-1] + 1)
    by_layer = []
    for layer in p:
        rows = layer[:, 1:]
        squares = np.einsum("hij,hij->hi", rows, rows)
        entropy = -np.sum(rows * np.log(np.where(rows > 0, rows, 1)), axis=-1)
        values = [1 / np.sqrt(keys * squares), entropy / np.log(keys), 1 / squares, rows.max(-1)]
        by_layer.append([*(value.mean(-1) for value in values), layer[..., 0].mean(-1)])
    return np.swapaxes(by_layer, 0, 1)


def streaming(tokens: int, width: int = 64, *, left_out: bool = False) -> Contest:
    """A causal head in passes over blocks; NumPy where it is not too slow; the bound is products and exponentials."""
    q, k = jax.random.normal(jax.random.key(0), (2, tokens, width))
    host = np.asarray(q), np.asarray(k)

    def ours() -> np.ndarray:
        measures = diagnostics.scores(q, k, mask="causal")
        return np.array([measures[name] for name in SHARED]).ravel()

    theirs: dict[str, Side] = {} if left_out else {"NumPy, by blocks of queries": lambda: by_blocks(*host)}
    work = tokens * (tokens + 1) // 2
    return Contest(
        title=f"queries and keys of one causal head of width {width}, n = {tokens:,}",
        unit="pairs/s",
        work=work,
        sides=theirs | {"rc_jax.diagnostics.scores": ours},
        agree=close(1e-3),
        bounds=pairs(width, work),
    )


def pairs(
    width: int, work: float, rows: int = 256, tokens: int = 8192
) -> dict[str, tuple[float, Callable[[], object]]]:
    """One product and one exponential for every pair, in blocks that stay in a cache.

    It is done as often as takes about as long as `work` pairs do, 16 times at most: a short call starts slowly.
    """
    times = int(min(16, max(1, work // tokens**2)))
    q, k = jax.random.normal(jax.random.key(0), (2, tokens, width)) / math.sqrt(width)
    blocks = q.reshape(-1, rows, width), k.reshape(-1, 1024, width)

    @jax.jit
    def all_pairs(q: jax.Array, k: jax.Array) -> jax.Array:
        def row(q: jax.Array) -> jax.Array:
            return jax.lax.map(lambda k: jnp.exp(jnp.matmul(q, k.T, precision="highest")).sum(axis=1), k)

        return jax.lax.map(row, q)

    def again() -> None:
        for _ in range(times):
            all_pairs(*blocks).block_until_ready()

    return {"bound: products and exponentials alone": (times * tokens**2, again)}


def by_blocks(q: np.ndarray, k: np.ndarray, size: int = 256) -> np.ndarray:
    """The shared measures in NumPy, without the whole array: softmax of some rows at a time."""
    totals, first, tokens = np.zeros(4), 0.0, len(q)
    for start in range(0, tokens, size):
        rows = np.arange(start, min(start + size, tokens))
        s = q[rows] @ k[: rows[-1] + 1].T * np.float32(q.shape[-1] ** -0.5)
        s[rows[:, None] < np.arange(s.shape[1])] = -np.inf
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        first += p[:, 0].sum()
        keys, squares = rows + 1, np.einsum("ij,ij->i", p, p)
        entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)
        values = 1 / np.sqrt(keys * squares), entropy / np.log(np.maximum(keys, 2)), 1 / squares, p.max(-1)
        totals += [value[keys >= 2].sum(dtype=float) for value in values]
    return np.array([*(totals / (tokens - 1)), first / tokens])


# Devices and precisions


def device(count: int) -> Iterator[Contest | Table]:
    """The default device's best rates; on an accelerator then the contests that are large enough for one."""
    on_cpu, kind = jax.default_backend() == "cpu", jax.devices()[0].device_kind
    size, many = (2048, 2**22) if on_cpu else (8192, 2**27)
    square, row = jnp.ones((size, size)), jnp.ones(many)
    rates = {  # work, and a program of an array
        "operations, float32": (2.0 * size**3, square, lambda a: jnp.matmul(a, a, precision="highest")),
        "operations, float32 at the device's default": (2.0 * size**3, square, lambda a: jnp.matmul(a, a)),
        "operations, bfloat16": (2.0 * size**3, square.astype(jnp.bfloat16), lambda a: jnp.matmul(a, a)),
        "exponentials": (many, row, lambda a: jnp.exp(a).reshape(-1, 256).sum(axis=1)),
        "bytes copied": (8.0 * many, row, lambda a: a + 1),
    }
    yield Table(f"best rates of {kind}", ("what", "a second"), [(name, _rate(*each)) for name, each in rates.items()])
    if not on_cpu:
        yield drawn(SMALL, 64 * count, left_out=(NUMPY, LOOP))
        yield drawn(BASE, 2 * count, left_out=(NUMPY, LOOP))
        yield given(BASE, min(64, count))
        yield deep(GPT3)
        yield streaming(256 * count, left_out=True)


def _rate(work: float, x: jax.Array, program: Callable[[jax.Array], jax.Array]) -> float:
    """Work a second in the best of ten calls."""
    compiled = jax.jit(program)
    compiled(x).block_until_ready()
    return work / min(timeit.repeat(lambda: compiled(x).block_until_ready(), number=1, repeat=10))


def precision(count: int) -> Iterator[Table]:
    """No time: the largest distance of each quantity from float64 on the same rounded inputs."""
    kinds = {"float32": (jnp.float32, "highest"), "bfloat16": (jnp.bfloat16, "default")}
    if jax.default_backend() != "cpu":  # a CPU computes all products of float32 alike
        kinds["float32, products at the device's default"] = (jnp.float32, "default")
    rows = [
        (name, error, *(_distance(call, inputs, error, *kind) for kind in kinds.values()))
        for name, error, inputs, call in _quantities()
    ]
    yield Table("distance from float64, the largest over all numbers", ("quantity", "error", *kinds), rows)


def _distance(call: Callable[..., jax.Array], inputs: Any, error: str, dtype: Any, products: str) -> float:
    rounded = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, float), dtype), inputs)
    value = np.asarray(call(products, *rounded), float)
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        exact = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, float)), rounded)
        expected = np.asarray(call("highest", *exact), float)
    unit = {"absolute": 1.0, "relative": np.abs(expected), "of max(1, log)": np.maximum(1, np.abs(expected))}[error]
    return float(np.max(np.abs(value - expected) / unit))


def _quantities() -> Iterator[tuple[str, str, tuple[Any, ...], Callable[..., jax.Array]]]:
    """Name, kind of error, inputs, and the quantity as a function of the precision of products and of the inputs."""

    def of_network(call: Callable[..., jax.Array], depth: int, *, skip: bool = False) -> tuple[Any, Any]:
        def spec(products: Any) -> network.StackSpec:
            layer = replace(SMALL.spec.attention, precision=products)
            return network.StackSpec(attention=layer, depth=depth, skip=skip)

        inputs = network.init(jax.random.key(0), spec("highest")), SMALL.input()
        return inputs, lambda products, params, x: call(params, x, spec(products))

    def of_arrays(call: Callable[..., jax.Array], *inputs: np.ndarray) -> tuple[Any, Any]:
        return inputs, lambda products, *rounded: call(*rounded)

    alpha, keys, gamma = np.linspace(0.1, 2.4, 24), np.geomspace(8, 2**15, 7), np.linspace(0.1, 5, 25)
    scores = np.random.default_rng(0).normal(size=(64, 1024))
    log = "of max(1, log)"
    yield "network.apply, 6 layers with skips", "absolute", *of_network(network.apply, 6, skip=True)
    yield "log ‖res(X)‖ in plain arithmetic, two layers", log, *of_network(plain, 2)
    yield "log ‖res(X)‖ in plain arithmetic, three layers", log, *of_network(plain, 3)
    yield "collapse.log_residuals, 12 layers", log, *of_network(collapse.log_residuals, 12)
    yield "collapse.layer_bound, 3 layers", log, *of_network(collapse.layer_bound, 3)
    yield "collapse.stable_rank", "relative", *of_arrays(collapse.stable_rank, np.asarray(SMALL.input()))
    yield (
        "scale.gradient_norm",
        "relative",
        *of_arrays(lambda s: scale.gradient_norm(s, 2.0), scores),
    )
    yield "scale.annealed_objective", "relative", *of_arrays(lambda a: scale.annealed_objective(a, 1024), alpha)
    yield "scale.optimal_scale, Gaussian", "relative", *of_arrays(scale.optimal_scale, keys)
    yield "scale.optimal_scale, cosine, d=128", "relative", *of_arrays(lambda n: scale.optimal_scale(n, 128), keys)
    orders, x = (grid.ravel() for grid in np.meshgrid([0.0, 7, 63, 1023, 32767], np.geomspace(1e-3, 1e5, 25)))
    yield "special.log_bessel_i, orders to 32 767", log, *of_arrays(log_bessel_i, orders, x)
    yield "special.lambert_w0", log, *of_arrays(lambert_w0, np.geomspace(1e-3, 1e30, 50))
    yield "sparsity.sparsity of 64 rows", "relative", *of_arrays(sparsity.sparsity, np.exp(scores))
    yield "sparsity.exponential", "relative", *of_arrays(sparsity.exponential, gamma)


BENCHMARKS: dict[str, Callable[[int], Iterator[Contest | Table]]] = {
    "initialisations": initialisations,
    "direct": direct,
    "scale_grid": scale_grid,
    "width_free": width_free,
    "diagnosis": diagnosis,
    "device": device,
    "precision": precision,
}
