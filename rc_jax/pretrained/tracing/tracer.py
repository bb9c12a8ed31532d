"""Observables of a trained network, layer by layer and head by head, over the windows of a text of any length."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from tqdm import tqdm

from rc_jax._numerics import arguments
from rc_jax._numerics.jax_names import PyTree
from rc_jax.collapse import NotCovered
from rc_jax.network import StackSpec
from rc_jax.pretrained.checkpoint import Checkpoint
from rc_jax.pretrained.tracing import observables

SWITCHES = ("attention", "skip", "mlp")
MOST_NUMBERS = 2**24  # in the attention matrices of one layer of one batch, where nothing else is asked for
MOST_WINDOWS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """The result of `trace`.

    Attributes:
        spec: the network that was run, with its switches.
        layers: which layers are reported: 0 is the embeddings, l = 1 … L the l-th layer and the tokens after it.
        tokens: tokens of a window.
        rows: how many rows of an attention matrix see at least two tokens; means over rows are over these. Where some
            layers are local, this and the two scales below are of the other layers.
        rounding_floor: below it a relative residual is rounding, √d_model times the eps of float32, or float64.
        optimal_scale: α* for Gaussian scores, mean over those rows; NaN if there is none.
        cosine_optimal_scale: α* for cosines, mean over those rows; None unless queries and keys are normalised.
        samples: three trees of arrays, in float64. "states": `relative_residual_1inf`, `relative_residual_frobenius`,
            `log_residual` (nats), `effective_rank`, each (window, layer). "heads": `sparsity`, `entropy` (nats),
            `relative_entropy`, `effective_rank`, `implied_scale`, `scale_ratio`, and `cosine_factor` and `cosine_ratio`
            where queries and keys are normalised, each (window, layer, head), without layer 0. "paths": `share`,
            `residual_share`, each (window, length). A part of the theory that does not cover the network is absent.
        reasons: why a part is absent, by its name.
    """

    spec: StackSpec
    layers: tuple[int, ...]
    tokens: int
    rows: int
    rounding_floor: float
    optimal_scale: float
    cosine_optimal_scale: float | None
    samples: dict[str, dict[str, np.ndarray]]
    reasons: dict[str, str]

    @property
    def windows(self) -> int:
        """How many windows were traced."""
        return len(next(iter(self.samples["states"].values())))

    @property
    def head_layers(self) -> tuple[int, ...]:
        """The layers that have heads: all but the embeddings."""
        return tuple(index for index in self.layers if index)


def _token_windows(name: str, value: Any) -> None:
    arguments.integer_array("window", "token")(name, value)
    if value.shape[0] < 1 or value.shape[1] < 2:
        raise ValueError(
            f"`{name}` must hold at least one window of at least two tokens, got {arguments.describe(value)}"
        )


def _several(name: str, value: Any, of: str) -> list[Any]:
    """The items of a list, tuple or other iterable; a string is one name, not several."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"`{name}` must be several {of}, got {arguments.describe(value)}")
    return list(value)


def _check_layers(layers: Iterable[int], depth: int) -> tuple[int, ...]:
    """The layers in order, each once."""
    for index in (chosen := _several("layers", layers, "integers")):
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            raise TypeError(f"`layers` must be several integers, got {index!r} among them")
        if not 0 <= index <= depth:
            raise ValueError(f"`layers` must lie in 0 … {depth}, 0 being the embeddings, got {index!r}")
    if not chosen:
        raise ValueError(f"`layers` must name at least one of 0 … {depth}, got none")
    return tuple(sorted({int(index) for index in chosen}))


def _switched(spec: StackSpec, switches: Iterable[str]) -> StackSpec:
    """The network with skip connections and MLPs only where they are named; norms stay as they are."""
    for name in (named := _several("switches", switches, "names")):
        if name not in SWITCHES:
            raise ValueError(f"`switches` must be among {', '.join(SWITCHES)}, got {name!r}")
    return dataclasses.replace(spec, skip=spec.skip and "skip" in named, mlp=spec.mlp if "mlp" in named else None)


class Tracer:
    """`trace` one batch at a time: `add` windows as they come, and ask for `result` at any time.

    Memory holds one batch, its hidden states after one layer and that layer's attention matrices, and of every window
    the numbers of `Trace.samples`. The number of compiled programs does not grow with the number of windows.

    Args:
        checkpoint: from `load`.
        tokens: tokens of a window.
        batch_size: windows at a time; `windows_at_a_time` suggests a number.
        layers: which layers to report; all by default.
        switches: which of skip and mlp are on, beside attention; all by default.
        exact: whether to compute the log residual in exact arithmetic, which takes longest to compile and to run.

    Raises:
        TypeError, ValueError: as `trace`.
    """

    checkpoint: Checkpoint
    tokens: int
    batch_size: int

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokens: int,
        batch_size: int,
        *,
        layers: Sequence[int] | None = None,
        switches: Sequence[str] = SWITCHES,
        exact: bool = True,
    ):
        stack = checkpoint.spec
        for layer in (kind.attention for kind in stack.kinds):
            for name, needed in (("weights", "softmax"), ("top_k", None), ("rank", None)):
                if (value := getattr(layer, name)) != needed:
                    raise ValueError(f"`checkpoint` must be of a network with {name}={needed!r}, got {value!r}")
        arguments.integer(2)("tokens", tokens)
        arguments.integer(1)("batch_size", batch_size)
        self.checkpoint, self.tokens, self.batch_size = checkpoint, tokens, batch_size
        self.spec: StackSpec = _switched(stack, switches)
        self.layers: tuple[int, ...] = _check_layers(range(stack.depth + 1) if layers is None else layers, stack.depth)
        self.reasons: dict[str, str] = {} if exact else {"log_residual": "not asked for"}
        # α* depends on a row only by the number n_i of tokens that it sees, so it is solved for once for each kind of
        # layers, at the start.
        scales = [observables.best_scales(tokens, kind.attention) for kind in stack.kinds]
        best = scales[0]
        counted = np.isfinite(best["dot"])  # with a window of one token, no row
        self._optimal = {
            name: float(values[counted].mean()) if counted.any() else np.nan for name, values in best.items()
        }
        self._rows = int(counted.sum())
        self._best = [{name: jnp.asarray(values) for name, values in kind.items()} for kind in scales]
        self._parts: list[tuple[int, PyTree]] = []  # how many windows, and their observables

    def add(self, windows: Int[np.ndarray, "window token"]) -> None:
        """Add some windows, at most `batch_size` of them; all count or, if this is interrupted, none.

        Raises:
            TypeError: they are not an array of integers.
            ValueError: too many, of another length, or with an id that has no embedding.
        """
        _token_windows("windows", windows)
        count = len(windows)
        if not 1 <= count <= self.batch_size or windows.shape[1] != self.tokens:
            raise ValueError(
                f"`windows` must be 1 to {self.batch_size} windows of {self.tokens} tokens, "
                f"got {arguments.describe(windows)}"
            )
        embedded = [self.checkpoint.embed(ids) for ids in windows]
        x = jnp.stack(
            embedded + embedded[-1:] * (self.batch_size - count)
        )  # one shape for all batches; the rest is dropped
        self._parts.append((count, jax.tree.map(lambda values: np.array(values, np.float64)[:count], self._observe(x))))
        # Parts of like length are joined, so that few arrays are kept and none is copied often.
        while len(self._parts) > 1 and self._parts[-2][0] <= self._parts[-1][0]:
            self._parts[-2:] = [_joined(self._parts[-2:])]

    def result(self) -> Trace:
        """The samples of the windows so far.

        Raises:
            ValueError: there was none.
        """
        if not self._parts:
            raise ValueError("`add` must have been given at least one window, got none")
        # The rounding floor is eps of the residuals' dtype times √d_model: an entry of a token is a sum of d_model
        # products, whose rounding errors add up as independent ones do.
        dtype = observables.wide(self.checkpoint.params.attention.query[:0]).dtype
        return Trace(
            spec=self.spec,
            layers=self.layers,
            tokens=self.tokens,
            rows=self._rows,
            rounding_floor=float(jnp.finfo(dtype).eps) * self.spec.attention.d_model**0.5,
            optimal_scale=self._optimal["dot"],
            cosine_optimal_scale=self._optimal.get("cosine"),
            samples=_joined(self._parts)[1],
            reasons=dict(self.reasons),
        )

    def _observe(self, x: Array) -> PyTree:
        """All observables of one batch; every leaf has a leading axis of windows."""
        params, stack = self.checkpoint.params, self.spec
        bare = dataclasses.replace(stack, skip=True, mlp=None, norm=None)  # the network whose paths are summed
        logs = self._covered("log_residual", observables.log_residuals, x, stack)
        paths = self._covered("paths", observables.path_shares, x, bare)
        # One layer after another, so that only one layer's attention matrices are in memory.
        states, heads, x = [], [], observables.wide(x)
        for index in range(max(self.layers) + 1):
            if index:
                kind = stack.kind_of(index - 1)
                x, rows, p = observables.layer(params, jnp.asarray(index - 1), x, self._best[kind], stack.kinds[kind])
                if index in self.layers:
                    heads.append(rows | {"effective_rank": observables.effective_ranks(p)})
                del p
            if index in self.layers:
                states.append(observables.sizes(x) | {"effective_rank": observables.effective_ranks(x)})
        batch: dict[str, Any] = {"states": _stacked(states)}
        if heads:
            batch["heads"] = _stacked(heads)
        if logs is not None:
            batch["states"]["log_residual"] = np.asarray(logs)[:, list(self.layers)]
        if paths is not None:
            batch["paths"] = paths
        return batch

    def _covered(self, name: str, program: Any, x: Array, spec: StackSpec) -> Any:
        """The result of a program; None, with the reason stored, where theory does not cover the network."""
        if name in self.reasons:
            return None
        try:
            return program(self.checkpoint.params, x, spec)
        except NotCovered as error:
            self.reasons[name] = str(error)
            return None


def _joined(parts: list[tuple[int, PyTree]]) -> tuple[int, PyTree]:
    """Observables of the windows of all parts, in their order."""
    counts, trees = zip(*parts, strict=True)
    return sum(counts), jax.tree.map(lambda *values: np.concatenate(values), *trees)


def _stacked(layers: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """One array (window, layer, …) for each name."""
    return {name: np.stack([np.asarray(layer[name]) for layer in layers], axis=1) for name in layers[0]}


@arguments.guard(windows=_token_windows, batch_size=arguments.integer(1))
def trace(
    checkpoint: Checkpoint,
    windows: Int[np.ndarray | Array, "window token"],
    *,
    layers: Sequence[int] | None = None,
    switches: Sequence[str] = SWITCHES,
    batch_size: int | None = None,
    exact: bool = True,
    progress: bool = False,
) -> Trace:
    """Measure what each layer and each head of a trained network does to the tokens of a text.

    For each window, layer by layer: ‖res(X)‖/‖X‖ in two norms, log ‖res(X)‖_F in exact arithmetic, the effective rank
    exp(−Σ s log s) of X; and head by head, as means over the rows of P that see n_i ≥ 2 tokens: sparsity
    S = E|p|/√E p² over the n_i weights, entropy −Σ p log p and entropy/log n_i, effective rank of P, the implied α (the
    sample deviation of a row's n_i logits, squares over n_i − 1) and its ratio to c₄(n_i) α*(n_i), the mean sample
    deviation of n_i independent Gaussians of deviation α*(n_i). For normalised queries and keys also the factor that
    multiplies their cosines, and its ratio to α*(n_i, d_head). By length of path, the shares of the output of the same
    attention with skip connections and without MLPs and norms. The numbers of every window come back.
    All this is independent of `batch_size`, to rounding.

    Args:
        checkpoint: from `load`.
        windows: token ids, as from `cut`.
        layers: which layers to report, 0 … L, 0 being the embeddings; all by default.
        switches: which of "skip" and "mlp" are on; attention always is, and norms stay as the checkpoint has them. An
            MLP that is off takes its norm with it.
        batch_size: windows at a time; by default up to 8 that keep a layer's attention matrices below 64 MB.
        exact: whether to compute the log residual in exact arithmetic, which takes longest to compile and to run.
        progress: whether to show a bar on stderr.

    Raises:
        TypeError: `windows` or `layers` are not integers, `batch_size` is not one, or `switches` is not several names.
        ValueError: no window, windows of one token or more than the model takes, an id without embedding, an unknown
            layer or switch, or a network whose attention is not softmax over tokens.

    Source: DCL21, section 4 (residuals with parts switched off); Su Jianlin, kexue.fm/archives/9889 (S) and 9812 (α*);
        Roy & Vetterli 2007 (effective rank); the shares are this package's own.

    Example:
        >>> from rc_jax import pretrained
        >>> checkpoint = pretrained.load(pretrained.packaged_checkpoint())
        >>> windows = pretrained.cut(checkpoint, "Attention without skips loses rank.").ids
        >>> traced = trace(checkpoint, windows, layers=[1], exact=False)
        >>> traced.samples["heads"]["sparsity"].shape
        (1, 1, 12)
    """
    windows = np.asarray(windows)
    size = windows_at_a_time(checkpoint, windows, batch_size)
    tracer = Tracer(checkpoint, windows.shape[1], size, layers=layers, switches=switches, exact=exact)
    for part in batches(windows, size, progress=progress):
        tracer.add(part)
    return tracer.result()


def windows_at_a_time(checkpoint: Checkpoint, windows: Int[np.ndarray, "window token"], most: int | None = None) -> int:
    """Windows at a time: at most `most`, or 8 that keep a layer's attention matrices below 64 MB, in even batches."""
    count, tokens = windows.shape
    if most is None:
        most = max(1, min(MOST_WINDOWS, MOST_NUMBERS // (checkpoint.spec.attention.heads * tokens**2)))
    return -(-count // -(-count // most))


def batches(windows: Int[np.ndarray, "window token"], batch_size: int, *, progress: bool) -> Iterable[np.ndarray]:
    """The windows, some at a time, with a bar on stderr if wanted."""
    with tqdm(total=len(windows), unit="window", leave=False, disable=not progress) as bar:
        for start in range(0, len(windows), batch_size):
            part = windows[start : start + batch_size]
            yield part
            bar.update(len(part))
