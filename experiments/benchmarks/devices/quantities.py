"""The package's quantities, each with inputs and a measure of errors, for the table of precisions."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.shapes import SMALL
from rc_jax import attention, collapse, network, scale, sparsity, special
from rc_jax.attention import Precision

RELATIVE, LOGARITHM, ROOT, ABSOLUTE = "relative", "of max(1, log)", "of rms", "absolute"


@dataclasses.dataclass(frozen=True)
class Quantity:
    """`measure(inputs, precision)` in the dtype of its inputs, and how far from float64 it is, in units of `error`.

    relative: |value/exact − 1|; of max(1, log): |value − exact| of a logarithm in nats, over its magnitude where that
    is above 1; of rms: over the root mean square of one matrix of tokens; absolute: |value − exact|.
    """

    name: str
    error: str
    inputs: Any
    measure: Callable[[Any, Precision], jax.Array]

    def distance(self, value: np.ndarray, exact: np.ndarray) -> float:
        """The largest error; NaN where a number is not finite that should be."""
        units = {
            RELATIVE: np.abs(exact),
            LOGARITHM: np.maximum(1, np.abs(exact)),
            ROOT: np.sqrt(np.square(exact).mean(axis=(-2, -1), keepdims=True)) if exact.ndim > 1 else 1,
            ABSOLUTE: np.ones(()),
        }
        with np.errstate(invalid="ignore"):
            return float((np.where(value == exact, 0, np.abs(value - exact)) / units[self.error]).max())


def quantities(full: bool) -> Iterator[Quantity]:
    """All of them, in the order of the subpackages; without those that compile slowly where not `full`."""
    yield from _layers()
    if full:
        yield from _networks()
    yield from _measures_of_tokens()
    yield from _scales()
    yield from _special()
    yield from _sparsities()


def _of_network(name: str, error: str, depth: int, call: Callable[..., jax.Array], *, skip: bool = False) -> Quantity:
    """A quantity of a drawn network and its tokens, `call(params, x, spec)`."""

    def spec(precision: Precision) -> network.StackSpec:
        layer = dataclasses.replace(SMALL.spec.attention, precision=precision)
        return network.StackSpec(attention=layer, depth=depth, skip=skip)

    inputs = network.init(jax.random.key(0), spec("highest")), SMALL.input()
    return Quantity(name, error, inputs, lambda inputs, precision: call(*inputs, spec(precision)))


def _of_arrays(name: str, error: str, call: Callable[..., jax.Array], *inputs: np.ndarray) -> Quantity:
    """A quantity of arrays, without matrix products."""
    return Quantity(name, error, inputs, lambda inputs, _: call(*inputs))


def _layers() -> Iterator[Quantity]:
    def first(params: network.LayerParams) -> attention.AttentionParams:
        return jax.tree.map(lambda leaf: leaf[0], params.attention)

    def weights(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> jax.Array:
        return attention.attention_weights(first(params), x, spec.attention)

    def layer(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> jax.Array:
        return attention.attend(first(params), x, spec.attention)

    def plain(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> jax.Array:
        return jnp.log(collapse.frobenius(collapse.residual(network.hidden_states(params, x, spec)[-1])))

    # The last rows show plain arithmetic at depths where the residual falls below rounding.
    yield _of_network("attention.attention_weights", ABSOLUTE, 1, weights)
    yield _of_network("attention.attend", ROOT, 1, layer)
    yield _of_network("network.apply, 6 layers with skips", ROOT, 6, network.apply, skip=True)
    for depth in (1, 2, 3, 4):
        yield _of_network(f"log ‖res(X)‖ in plain arithmetic, layer {depth}", LOGARITHM, depth, plain)


def _networks() -> Iterator[Quantity]:
    def shares(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> jax.Array:
        return collapse.path_shares(params, x, spec).log_residual

    def gradients(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> jax.Array:
        cotangent = jnp.asarray(np.random.default_rng(0).normal(size=x.shape).astype(np.float32)).astype(x.dtype)
        return jnp.stack(collapse.log_weight_gradients(params, x, spec, cotangent))

    # Logarithms are compared in nats, and sums over paths with the size of the tokens.
    exact, bounds = "collapse.log_residuals", "layers 1 … 3"
    yield _of_network(f"{exact}, layers 1 … 12", LOGARITHM, 12, collapse.log_residuals)
    yield _of_network(f"{exact}, with skips, layers 1 … 6", LOGARITHM, 6, collapse.log_residuals, skip=True)
    yield _of_network(f"collapse.layer_bound, {bounds}", LOGARITHM, 3, collapse.layer_bound)
    yield _of_network(f"collapse.depth_bound, {bounds}", LOGARITHM, 3, collapse.depth_bound)
    yield _of_network("collapse.measured_gamma", RELATIVE, 3, collapse.measured_gamma)
    yield _of_network(f"collapse.tanh_bound, {bounds}", LOGARITHM, 3, collapse.tanh_bound)
    yield _of_network("collapse.path_length_sums, 6 layers", ROOT, 6, collapse.path_length_sums, skip=True)
    yield _of_network("collapse.path_shares, log residuals", LOGARITHM, 6, shares, skip=True)
    yield _of_network("collapse.log_weight_gradients, 3 layers", LOGARITHM, 3, gradients)


def _measures_of_tokens() -> Iterator[Quantity]:
    def stacked(*functions: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: jnp.stack([function(x) for function in functions])

    x = np.asarray(SMALL.input())
    sizes = stacked(collapse.frobenius, collapse.norm_1inf, collapse.diameter)
    ranks = stacked(collapse.stable_rank, collapse.effective_rank)
    yield _of_arrays("collapse.residual", ROOT, collapse.residual, x)
    yield _of_arrays("collapse.frobenius, norm_1inf, diameter", RELATIVE, sizes, x)
    yield _of_arrays("collapse.stable_rank, effective_rank", RELATIVE, ranks, x)


def _scales() -> Iterator[Quantity]:
    scores = np.random.default_rng(0).normal(size=(64, 1024))
    sharp, keys = np.geomspace(0.1, 30, 16), np.array([8.0, 32, 128, 512, 2048, 8192, 2.0**15])
    flat, cosine = np.linspace(0.1, 2.4, 24), np.linspace(1.0, 30, 30)

    def gradient(s: jax.Array, alpha: jax.Array) -> jax.Array:
        return jax.vmap(lambda alpha: scale.gradient_norm(s, alpha))(alpha)

    def entropies(s: jax.Array, alpha: jax.Array) -> jax.Array:
        return jax.vmap(lambda a: jnp.stack([scale.softmax_entropy(s, a), scale.renyi_entropy(s, a)]))(alpha)

    def annealed(alpha: jax.Array, dim: int | None = None) -> jax.Array:
        return scale.annealed_objective(alpha, 1024, dim)

    # Scores given, then closed forms, then optima.
    yield _of_arrays("scale.gradient_norm, α = 0.1 … 30", RELATIVE, gradient, scores, sharp)
    yield _of_arrays("scale.softmax_entropy, renyi_entropy", LOGARITHM, entropies, scores, sharp)
    yield _of_arrays("scale.annealed_objective, Gaussian", RELATIVE, annealed, flat)
    yield _of_arrays("scale.annealed_objective, cosine d=128", RELATIVE, lambda a: annealed(a, 128), cosine)
    yield _of_arrays("scale.optimal_scale, Gaussian", RELATIVE, scale.optimal_scale, keys)
    yield _of_arrays("scale.optimal_scale, cosine d=128", RELATIVE, lambda n: scale.optimal_scale(n, 128), keys)
    yield _of_arrays("scale.optimal_scale_exact", RELATIVE, scale.optimal_scale_exact, keys)
    yield _of_arrays("scale.per_sample_scale, 64 rows", RELATIVE, scale.per_sample_scale, scores)


def _special() -> Iterator[Quantity]:
    orders, x = (grid.ravel() for grid in np.meshgrid([0.0, 0.5, 7, 63, 1023, 32767], np.geomspace(1e-3, 1e5, 25)))
    values = np.concatenate([np.linspace(-0.36, 1, 30), np.geomspace(1.5, 1e30, 30)])
    yield _of_arrays("special.log_bessel_i, orders to 32 767", LOGARITHM, special.log_bessel_i, orders, x)
    yield _of_arrays("special.log_hyp0f1", LOGARITHM, special.log_hyp0f1, orders + 1, x)
    yield _of_arrays("special.lambert_w0", LOGARITHM, special.lambert_w0, values)


def _sparsities() -> Iterator[Quantity]:
    gamma, tail = np.linspace(0.1, 5, 25), -np.geomspace(1, 1e4, 25)
    weights = np.random.default_rng(0).exponential(size=(64, 1024))
    rate = np.array([0.5, 0.9, 0.99, 0.9990234375])

    def of(name: str, call: Callable[..., jax.Array], inputs: np.ndarray, error: str = RELATIVE) -> Quantity:
        return _of_arrays(f"sparsity.{name}", error, call, inputs)

    def at_one(kernel: Callable[..., jax.Array], *first: Any) -> Callable[[jax.Array], jax.Array]:
        return lambda beta: kernel(*first, beta, jnp.ones_like(beta))

    # A measure of weights, then closed forms of kernels, some far in their tails.
    yield of("sparsity of 64 rows", sparsity.sparsity, weights)
    yield of("exponential", sparsity.exponential, gamma)
    yield of("identity", at_one(sparsity.identity), tail)
    yield of("relu_squared, β/γ > −10", at_one(sparsity.relu_squared), tail[:7])
    yield of("log_relu_squared, β/γ to −10⁴", at_one(sparsity.log_relu_squared), tail, LOGARITHM)
    yield of("nonnegative_linear_iid", lambda q: sparsity.nonnegative_linear_iid(q, 0.5, 0.25), weights)
    yield of("decay, n = 1024", lambda lam: sparsity.decay(lam, 1024), rate)
    yield of("from_kernel, softplus", at_one(sparsity.from_kernel, jax.nn.softplus), np.linspace(-3, 3, 25))
