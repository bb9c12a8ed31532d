"""The one switch of everything that exists because of XLA's compiler for CPUs.

Some formulas have a second form here that gives the same numbers, to rounding, in less time on a CPU. On GPUs and TPUs
the plain form is used: one large product, LAPACK's or cuSOLVER's factorisations, JAX's own reductions. `RC_JAX_PLAIN=1`
in the environment, or `with plain():`, takes the plain forms on CPUs too. Each form's docstring has its price.

- `rc_jax._numerics.random`: two normal numbers from one evaluation of the generator.
- `rc_jax._numerics.linear_algebra`: factors of Gram matrices by products alone.
- `rc_jax.attention.parameters`: one product a head in place of one for all heads.
- `rc_jax.collapse.exact.unsaturated`: fewer exponentials where softmax is far from saturated.
- `rc_jax.diagnostics.streaming`: blocks that fit into the cache.
- `rc_jax.ensemble.runner`: vectors of 512 bits.
- `quickly` and `once`: options for a faster compilation of functions that are called a few times, or once.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from rc_jax._numerics.jax_names import Tracer

P = ParamSpec("P")
R = TypeVar("R")
QUICK: dict[str, Any] = {
    "xla_cpu_parallel_codegen_split_count": min(os.cpu_count() or 1, 8),
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
}
ONCE: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
WIDE: dict[str, Any] = {"xla_cpu_prefer_vector_width": 512}
_plain = os.environ.get("RC_JAX_PLAIN", "0") not in ("", "0")


def tricks() -> bool:
    """Whether forms for XLA's CPU compiler may be used, in programs for CPUs."""
    return not _plain


@contextlib.contextmanager
def plain() -> Generator[None, None, None]:
    """Use the plain forms alone. JAX forgets its compiled programs at entry and exit, because each holds one form."""
    global _plain
    before, _plain = _plain, True
    jax.clear_caches()
    try:
        yield
    finally:
        _plain = before
        jax.clear_caches()


def on_cpu(cpu: Callable[..., Any], default: Callable[..., Any], *operands: Any) -> Any:
    """`cpu(*operands)` in a program for CPUs, `default(*operands)` in one for other devices or under `plain`."""
    if not tricks():
        return default(*operands)
    return jax.lax.platform_dependent(*operands, cpu=cpu, default=default)


@jax.custom_batching.custom_vmap
def any_in_batch(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """The flag; under `vmap`, whether it is true in any member of the batch, so that a `lax.cond` runs one branch."""
    return flag


@any_in_batch.def_vmap
def _any_in_batch(size: int, batched: list[bool], flags: Bool[Array, " member"]) -> tuple[Bool[Array, ""], bool]:
    del size
    return any_in_batch(jnp.any(flags, axis=0) if batched[0] else flags), False


def quickly(**jit_options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`jax.jit` with these options, compiled for speed of compiling where it is called outside of any trace.

    A small network is compiled in seconds and computed in milliseconds. Three options halve the processor time of
    compiling on CPUs: one module for LLVM per core, eight at most, in place of 32; XLA's older emitters of fused loops;
    and LLVM's first level of optimisation in place of its third, which takes a fifth of the rest. Repeated calls take
    up to a sixth longer by the first two (measured 2026-10) and no longer than that by the third (2026-11). Inside a
    caller's own `jit`, `vmap` or `grad`, and inside `ensemble.run`, the caller's options hold.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        nested = jax.jit(function, **jit_options)

        @functools.cache
        def outermost(options: tuple[tuple[str, Any], ...]) -> Callable[P, R]:
            return jax.jit(function, compiler_options=dict(options), **jit_options)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs))):
                return nested(*args, **kwargs)
            try:
                return outermost(tuple(_known().items()) if tricks() else ())(*args, **kwargs)
            except ValueError as error:  # inside a trace, even with no argument traced, JAX refuses the options
                if "compiler_options" not in str(error):
                    raise
                return nested(*args, **kwargs)

        return call

    return wrap


@functools.cache
def _known() -> dict[str, Any]:
    """The options that this XLA knows: none on other devices than CPUs."""
    return QUICK if jax.default_backend() == "cpu" and _accepts(tuple(QUICK.items())) else {}


def once(function: Callable[..., R], *arguments: Any) -> R:
    """The result of a program that a command runs once: half a second of compiling saved outweighs its milliseconds."""
    lowered = jax.jit(function).lower(*arguments)
    try:
        program = lowered.compile(ONCE if tricks() and jax.default_backend() == "cpu" else None)
    except (RuntimeError, ValueError, TypeError):  # other versions of XLA have other options
        program = lowered.compile()
    return jax.block_until_ready(program(*arguments))


def wide_vectors(platform: str) -> dict[str, Any]:
    """Options for programs that draw many random numbers: on a CPU, vectors of 512 bits where there are any.

    XLA's own choice is 256. Random numbers, most of an initialisation, take two thirds of the time with 512. Whoever
    has set the width in `XLA_FLAGS`, and an XLA that does not know the option, are left alone.
    """
    if platform != "cpu" or not tricks() or any(name in os.environ.get("XLA_FLAGS", "") for name in WIDE):
        return {}
    return WIDE if _accepts(tuple(WIDE.items())) else {}


@functools.cache
def _accepts(options: tuple[tuple[str, Any], ...]) -> bool:
    """Whether this XLA takes the options."""
    try:
        jax.jit(lambda: 0, compiler_options=dict(options))()
    except jax.errors.JaxRuntimeError:
        return False
    return True
