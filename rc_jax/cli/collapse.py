"""`rc-jax collapse`: log ‖res‖ by layer over random initialisations of attention."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rc_jax import attention, collapse, ensemble, network
from rc_jax._numerics.text import in_columns
from rc_jax.cli.arguments import Report, Usage, bounded, digits, number_or_none

LEVELS = {"lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75}
BOUNDS = {
    "depth": (1, 10_000),
    "heads": (1, 4096),
    "d_model": (1, 65_536),
    "tokens": (2, 65_536),
    "samples": (2, 10**7),
    "seed": (0, 2**32 - 1),
}
SMALL = 2**25  # numbers that an ensemble handles in less time than the compilation for speed takes
BATCH = 32  # initialisations at a time


def observe(key: jax.Array, stack: network.StackSpec, count: int) -> dict[str, jax.Array]:
    """Log ‖res‖ before and after each layer, of tokens and weights drawn from `key`, and the exponent of its fall.

    The exponent is NaN where one of the two steps is no fall.
    """
    tokens = jax.random.normal(jax.random.fold_in(key, 0), (count, stack.attention.d_model), "float32")
    layers = network.random_layers(jax.random.fold_in(key, 1), stack, dtype="float32")
    logs = collapse.log_residuals(layers, tokens, stack)
    steps = jnp.diff(logs)
    both_fall = (steps[1:] < 0) & (steps[:-1] < 0)
    return {"log_residual": logs, "exponent": jnp.where(both_fall, steps[1:] / steps[:-1], jnp.nan)}


def run(arguments: Any) -> Report:
    """Run the ensemble."""
    for name, bounds in BOUNDS.items():
        bounded(f"--{name.replace('_', '-')}", getattr(arguments, name), *bounds)
    if arguments.d_model % arguments.heads:
        raise Usage(f"`--heads` must divide --d-model {arguments.d_model}, got {arguments.heads}")
    # The ensemble, and its quartiles layer by layer; the first layer with an exponent is the second.
    layer = attention.AttentionSpec(d_model=arguments.d_model, heads=arguments.heads)
    stack = network.StackSpec(attention=layer, depth=arguments.depth, skip=arguments.skip)
    samples = _samples(functools.partial(observe, stack=stack, count=arguments.tokens), arguments)
    missing = (~np.isfinite(samples["log_residual"])).sum(axis=0)

    def quartiles(name: str, index: int) -> dict[str, Any]:
        values = samples[name][:, index]
        values = values[np.isfinite(values)]
        if name == "exponent" and 2 * values.size <= arguments.samples:  # of the minority in which anything falls
            values = values[:0]
        found = np.quantile(values, list(LEVELS.values())) if values.size else np.full(len(LEVELS), np.nan)
        return dict(zip(LEVELS, map(number_or_none, found), strict=True))

    rows: list[dict[str, Any]] = [
        {
            "layer": index,
            "log_residual": quartiles("log_residual", index),
            "exponent": quartiles("exponent", index - 2) if index >= 2 else None,
            "not_finite": int(missing[index]),
        }
        for index in range(arguments.depth + 1)
    ]
    settings = {name: getattr(arguments, name) for name in ("depth", "heads", "d_model", "tokens", "skip", "samples")}
    result = {**settings, "seed": arguments.seed, "unit": "nats", "layers": rows}
    unknown = ", ".join(str(row["layer"]) for row in rows if row["not_finite"])
    problems = (f"some initialisations have no finite log ‖res‖ at layers {unknown}",) if unknown else ()
    return Report(_text(arguments, rows), result, problems)


def _samples(measure: Callable[[jax.Array], Any], arguments: Any) -> dict[str, np.ndarray]:
    """`ensemble.run`, or the same samples by a program that is compiled in less time than it saves."""
    key = jax.random.key(arguments.seed, impl="threefry2x32")
    numbers = 4 * arguments.d_model**2 + arguments.heads * arguments.tokens**2 + arguments.tokens * arguments.d_model
    if numbers * arguments.depth * arguments.samples > SMALL:
        shown = sys.stderr.isatty() and not (arguments.json or arguments.quiet)
        return ensemble.run(measure, key, arguments.samples, progress=shown)

    def of(indices: jax.Array) -> dict[str, jax.Array]:
        return jax.lax.map(lambda index: measure(jax.random.fold_in(key, index)), indices, batch_size=BATCH)

    samples = jax.jit(of)(np.arange(arguments.samples, dtype=np.uint32))
    return {name: np.asarray(values, float) for name, values in samples.items()}


def _text(arguments: Any, rows: list[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        log = row["log_residual"]
        quartiles = f"{digits(log['lower_quartile'], 5)} … {digits(log['upper_quartile'], 5)}"
        exponent = "" if row["exponent"] is None else digits(row["exponent"]["median"])
        cells.append([str(row["layer"]), digits(log["median"], 6), quartiles, exponent])
    kind = "with skips" if arguments.skip else "without skips"
    return (
        f"log ‖res‖ (nats) by layer: d = {arguments.d_model}, H = {arguments.heads}, n = {arguments.tokens}, {kind}, "
        f"{arguments.samples} initialisations, seed {arguments.seed}\n\n"
        f"{in_columns(['layer', 'median', 'quartiles', 'exponent'], cells)}\n\n"
        "Exponent: fall at a layer over the fall at the one before (median); 3 is doubly exponential, 1 exponential.\n"
        "A dash: log ‖res‖ does not fall there in most initialisations."
    )
