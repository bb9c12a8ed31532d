"""`rc-jax collapse`: log ‖res‖ by layer over random initialisations of attention."""

import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp

from rc_jax import __version__, attention, collapse, ensemble, network
from rc_jax.cli.arguments import Report, Usage, bounded, number_or_none, table

LEVELS = (0.25, 0.5, 0.75)


@dataclasses.dataclass(frozen=True)
class Observables:
    """What one initialisation shows: log ‖res‖ before and after each layer, and the exponent of its fall."""

    stack: network.StackSpec
    tokens: int

    def __call__(self, key: jax.Array) -> dict[str, jax.Array]:
        """Draw tokens and weights from `key` and look."""
        tokens = jax.random.normal(jax.random.fold_in(key, 0), (self.tokens, self.stack.attention.d_model), "float32")
        layers = network.random_layers(jax.random.fold_in(key, 1), self.stack, dtype="float32")
        logs = collapse.log_residuals(layers, tokens, self.stack)
        falls = jnp.diff(logs)
        return {"log_residual": logs, "exponent": falls[1:] / falls[:-1]}


def run(arguments: Any) -> Report:
    """Run the ensemble.

    Raises:
        Usage: an argument is out of bounds.
    """
    _check(arguments)
    shape = attention.AttentionSpec(d_model=arguments.d_model, heads=arguments.heads)
    stack = network.StackSpec(attention=shape, depth=arguments.depth, skip=arguments.skip)
    key, shown = jax.random.key(arguments.seed), sys.stderr.isatty() and not (arguments.json or arguments.quiet)
    found = ensemble.run(Observables(stack, arguments.tokens), key, arguments.samples, progress=shown)
    quartiles = found.quantile(LEVELS)
    rows = [_row(layer, found, quartiles) for layer in range(arguments.depth + 1)]
    settings = {name: getattr(arguments, name) for name in ("depth", "heads", "d_model", "tokens", "skip", "samples")}
    result = {
        "command": "collapse",
        "version": __version__,
        **settings,
        "seed": arguments.seed,
        "unit": "nats",
        "layers": rows,
    }
    unknown = [str(row["layer"]) for row in rows if row["not_finite"]]
    problems = (f"some initialisations have no finite log ‖res‖ at layers {', '.join(unknown)}",) if unknown else ()
    return Report(_text(arguments, rows), result, problems)


def _check(arguments: Any) -> None:
    for name, least, most in (
        ("depth", 1, 10_000),
        ("heads", 1, 4096),
        ("d_model", 1, 65_536),
        ("tokens", 2, 65_536),
        ("samples", 2, 10**7),
        ("seed", 0, 2**32 - 1),
    ):
        bounded(f"--{name.replace('_', '-')}", getattr(arguments, name), least, most)
    if arguments.d_model % arguments.heads:
        raise Usage(f"`--heads` must divide --d-model {arguments.d_model}, got {arguments.heads}")


def _row(layer: int, found: ensemble.Statistics, quartiles: Any) -> dict[str, Any]:
    lower, median, upper = (number_or_none(value) for value in quartiles["log_residual"][:, layer])
    row: dict[str, Any] = {
        "layer": layer,
        "log_residual": {"lower_quartile": lower, "median": median, "upper_quartile": upper},
        "exponent": None,
        "not_finite": int(found.nonfinite["log_residual"][layer]),
    }
    if layer >= 2:
        lower, median, upper = (number_or_none(value) for value in quartiles["exponent"][:, layer - 2])
        row["exponent"] = {"lower_quartile": lower, "median": median, "upper_quartile": upper}
    return row


def _text(arguments: Any, rows: list[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        log = row["log_residual"]
        exponent = "" if row["exponent"] is None else _digits(row["exponent"]["median"], 3)
        quartiles = f"{_digits(log['lower_quartile'], 5)} … {_digits(log['upper_quartile'], 5)}"
        cells.append([str(row["layer"]), _digits(log["median"], 6), quartiles, exponent])
    kind = "with skips" if arguments.skip else "without skips"
    return (
        f"log ‖res‖ (nats) by layer: d = {arguments.d_model}, H = {arguments.heads}, n = {arguments.tokens}, {kind}, "
        f"{arguments.samples} initialisations, seed {arguments.seed}\n\n"
        f"{table(['layer', 'median', 'quartiles', 'exponent'], cells)}\n\n"
        "Exponent: fall at a layer over the fall at the one before (median); 3 is doubly exponential, 1 exponential."
    )


def _digits(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}g}"
