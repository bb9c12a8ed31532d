"""`rc-jax trace` for a reader: two tables, at most 100 columns wide, drawn from the result that JSON prints."""

from typing import Any

import numpy as np

from rc_jax.cli.arguments import digits, table


def text_of(result: dict[str, Any], *, heads: bool) -> str:
    """Tokens by layer; then heads, each or as quartiles; then what the columns mean."""
    parts = [_title(result), "Tokens after each layer, mean ± deviation over windows", _states(result)]
    if any("heads" in row for row in result["layers"]):
        title = "Attention, mean over rows and windows" + ("" if heads else ": quartiles and median over heads")
        parts += [title, (_each_head if heads else _quartiles)(result)]
    return "\n\n".join([*parts, _notes(result)])


def _title(result: dict[str, Any]) -> str:
    seen = "causal " if result["causal"] else ""
    done, of = result["windows_done"], result["windows"]
    windows = f"{of} windows" if done == of else f"{done} of {of} windows"
    twice = f", {result['tokens_counted_twice']} counted twice" if result["tokens_counted_twice"] else ""
    return (
        f"{result['folder']}: {seen}{result['model']}, {result['depth']} layers, {result['heads']} heads of width "
        f"{result['d_head']}\n"
        f"{result['text']}: {result['text_tokens']} tokens in {windows} of {result['tokens']}, "
        f"{result['special_tokens']} of them the model's own{twice}\n"
        f"On: {', '.join(result['switches'])}; norms as in the checkpoint; {result['dtype']}"
    )


def _states(result: dict[str, Any]) -> str:
    names = ("relative_residual_1inf", "relative_residual_frobenius", "log_residual", "effective_rank")
    columns = ["layer", "‖res‖/‖X‖ 1,∞", "‖res‖/‖X‖ F", "log ‖res‖ F", "rank of X"]
    columns += ["path X", "path res"] if result["paths"] else []
    rows = []
    for row in result["layers"]:
        floor = result["rounding_floor"]
        cells = [str(row["layer"])]
        cells += [_spread(row[name], floor if name.startswith("relative") else None) for name in names]
        if result["paths"]:
            path = result["paths"][row["layer"]]
            cells += [digits(path[name]["mean"], 2) for name in ("share", "residual_share")]
        rows.append(cells)
    return table(columns, rows)


QUARTILES = (0.25, 0.5, 0.75)
HEAD_COLUMNS = {
    "sparsity": "S",
    "entropy": "entropy",
    "relative_entropy": "/log n",
    "effective_rank": "rank of P",
    "implied_scale": "α",
    "scale_ratio": "α/α*",
    "cosine_factor": "cos α",
    "cosine_ratio": "cos α/α*",
}


def _present(result: dict[str, Any]) -> list[str]:
    first = next(row["heads"][0] for row in result["layers"] if "heads" in row)
    return [name for name in HEAD_COLUMNS if name in first]


def _each_head(result: dict[str, Any]) -> str:
    names = _present(result)
    rows = [
        [str(row["layer"]), str(head["head"]), *(digits(head[name]["mean"]) for name in names)]
        for row in result["layers"]
        for head in row.get("heads", ())
    ]
    return table(["layer", "head", *(HEAD_COLUMNS[name] for name in names)], rows)


def _quartiles(result: dict[str, Any]) -> str:
    names = [name for name in _present(result) if name not in ("entropy", "cosine_factor")]
    rows = []
    for row in (row for row in result["layers"] if "heads" in row):
        cells = [str(row["layer"])]
        for name in names:
            values = [head[name]["mean"] for head in row["heads"] if head[name]["mean"] is not None]
            cells.append(" ".join(digits(float(value), 2) for value in np.quantile(values or [np.nan], QUARTILES)))
        rows.append(cells)
    return table(["layer", *(HEAD_COLUMNS[name] for name in names)], rows)


def _notes(result: dict[str, Any]) -> str:
    alpha = f"α*(n) = {digits(result['optimal_scale'], 4)}"
    if result["cosine_optimal_scale"] is not None:
        alpha += f", for cosines {digits(result['cosine_optimal_scale'], 4)}"
    rows = f"{result['rows_of_a_window']} of {result['tokens']}"
    lines = [
        f"Rows: the {rows} that see n ≥ 2 tokens, each against its own n. S: 1 even, 1/√n on one token.",
        f"α: sample deviation of a row's logits; {alpha} on average. Logarithms in nats.",
        f"‖res‖/‖X‖ is plain arithmetic, only rounding below {result['rounding_floor']:.0e}; log ‖res‖ is not.",
    ]
    if result["paths"]:
        lines.append(
            "Path: what paths through as many heads as the row's number add to the output X, and to res(X), of\n"
            "attention and skips alone, MLPs and norms off, from the same embeddings; not of the network above."
        )
    # A part that theory does not cover is named with the reason.
    names = {"log_residual": "log ‖res‖", "paths": "Path shares"}
    lines += [f"{names[name]} left out: {reason}" for name, reason in result["reasons"].items()]
    return "\n".join(lines)


def _spread(values: dict[str, Any] | None, floor: float | None = None) -> str:
    if values is None or values["mean"] is None:
        return digits(None)
    if floor is not None and values["mean"] < floor:
        return f"< {floor:.0e}"
    middle, spread = digits(values["mean"]), values["standard_deviation"]
    return middle if spread is None else f"{middle} ± {float(f'{spread:.1g}'):g}"
