"""`rc-jax kind`: the three questions asked of one kind of attention weights, beside softmax."""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from rc_jax import study
from rc_jax.attention import KINDS, Kind
from rc_jax.cli.arguments import Report, Usage, bounded, check_figure, chosen


def run(arguments: Any) -> Report:
    """Study one kind."""
    if len(arguments.kind) != 1:
        raise Usage(f"`KIND` must be one name or module:function, got {' '.join(arguments.kind) or 'nothing'}")
    seed = bounded("--seed", arguments.seed, 0, 2**31 - 1)
    if arguments.figure is not None:
        check_figure(arguments.figure)
    kind = _named(arguments.kind[0])
    try:
        shown = not (arguments.json or arguments.quiet)
        found = study.kind(kind, seed=seed, progress=shown)
    except (TypeError, ValueError) as error:
        whose = "" if ":" not in arguments.kind[0] else f"{arguments.kind[0]}: "
        raise Usage(f"{whose}{error}") from error
    except Exception as error:
        if ":" not in arguments.kind[0]:
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]  # in somebody's own function
        place = f"in {last.name}, line {last.lineno} of {last.filename}"
        raise Usage(f"{arguments.kind[0]}: {type(error).__name__}: {error}, {place}") from error
    if arguments.figure is not None:
        study.draw(found).savefig(arguments.figure)
    return Report(str(found), json.loads(found.to_json()))


def _named(name: str) -> Kind | Callable[..., Any]:
    """A built-in kind, or what `module:function` names; modules of the working folder come first."""
    if ":" not in name:
        return KINDS[chosen("KIND", name, KINDS, "module:function or ")]
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise Usage(f"`KIND` must name a function as module:function, got {name}: {error}") from error
    except (Exception, SystemExit) as error:  # whatever somebody's own module does when it is loaded
        raise Usage(f"`KIND` must name a module that can be imported, got {name}: {error!r}") from error
    finally:
        sys.path.pop(0)
