"""A trained network measured with `rc_jax.diagnostics`, layer by layer, over the windows of a text of any length."""

import dataclasses
import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from tqdm import tqdm

from rc_jax import attention, collapse
from rc_jax._numerics import arguments
from rc_jax.attention import AttentionParams, AttentionSpec, masks
from rc_jax.collapse import NotCovered
from rc_jax.diagnostics import Diagnosis
from rc_jax.diagnostics.measures import SINK
from rc_jax.diagnostics.seen import seen_by
from rc_jax.diagnostics.states import measures_of, with_rates
from rc_jax.diagnostics.weights import Observed, check, observe, of_layers, pass_over
from rc_jax.network import LayerParams, StackSpec, block, plain_arithmetic
from rc_jax.pretrained.checkpoint import Checkpoint

SWITCHES = ("attention", "skip", "mlp")
MOST_NUMBERS = 2**24  # in the attention matrices of one layer of one batch, where nothing else is asked for
MOST_WINDOWS = 8


class _Added(NamedTuple):
    """What all windows so far give, replaced as a whole."""

    windows: int = 0
    heads: tuple[Observed, ...] = ()  # sums over windows, of each layer; what windows have of their own is apart
    states: Mapping[str, np.ndarray] = {}  # sums over windows
    finite: Mapping[str, np.ndarray] = {}  # how many numbers they are sums of


class Tracer:
    """`trace` one batch at a time: `add` windows as they come, and ask for `result` at any time.

    Memory holds one batch: its hidden states after one layer, that layer's attention matrices, and sums. Of each window
    it keeps three numbers of every head, the strongest key, its weight and that on the first key, and nothing else of
    it grows with the number of windows. The number of compiled programs does not grow either.

    Args:
        checkpoint: from `load`.
        tokens: tokens of a window.
        batch_size: windows at a time; `windows_at_a_time` suggests a number.
        switches: which of skip and mlp are on, beside attention; all by default.
        exact: whether to compute the log residual, in cancellation-free arithmetic, which takes longest.
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
        switches: Iterable[str] = SWITCHES,
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
        self.reasons: dict[str, str] = {} if exact else {"log_residual": "not asked for"}
        for kind in stack.kinds:
            if kind.attention.window == 0:
                raise ValueError(
                    "`checkpoint` must let queries of every layer see two keys, got layers with a window of 1, in "
                    "which each sees itself alone"
                )
        # What rows see, for each kind of layers.
        self._seen = [
            seen_by(_window(tokens, kind.attention), (tokens, tokens), kind.attention.causal) for kind in stack.kinds
        ]
        self._added = _Added()
        self._own: dict[str, np.ndarray] = {}  # numbers of each window, (window, layer, head), and room for more

    @property
    def windows(self) -> int:
        """How many there are so far."""
        return self._added.windows

    def add(self, windows: Int[np.ndarray, "window token"]) -> None:
        """Add some windows, at most `batch_size` of them; all count or, if this is interrupted, none."""
        arguments.integer_array("window", "token", window=1, token=2)("windows", windows)
        count = len(windows)
        if not 1 <= count <= self.batch_size or windows.shape[1] != self.tokens:
            raise ValueError(
                f"`windows` must be 1 to {self.batch_size} windows of {self.tokens} tokens, "
                f"got {arguments.describe(windows)}"
            )
        embedded = [self.checkpoint.embed(ids) for ids in windows]
        x = jnp.stack(embedded + embedded[-1:] * (self.batch_size - count))  # one shape for all; the rest is dropped
        heads, states = self._observe(x, count)
        finite = {name: np.isfinite(values) for name, values in states.items()}
        sums = {name: np.where(finite[name], values, 0).sum(0) for name, values in states.items()}
        done = self._added
        own = {name: np.stack([each.by_text[name] for each in heads], 1) for name in heads[0].by_text}
        self._own = {name: _written(self._own.get(name), done.windows, values) for name, values in own.items()}
        bare = tuple(each._replace(by_text={}) for each in heads)
        self._added = _Added(  # one assignment: an interrupt leaves all of the batch or nothing
            done.windows + count,
            jax.tree.map(operator.add, done.heads, bare) if done.heads else bare,
            {name: value + done.states.get(name, 0) for name, value in sums.items()},
            {name: value.sum(0) + done.finite.get(name, 0) for name, value in finite.items()},
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """A sentence for each measure that is not finite in every window; such numbers are left out of its mean."""
        said: list[str] = []
        windows = self._added.windows
        for name, counts in self._added.finite.items():
            layers = np.flatnonzero(counts < windows)
            cases = f"{int((windows - counts).sum())} of {counts.size * windows}"
            if len(layers) and name != "residual_rate":
                places = ", ".join(map(str, layers))
                said.append(
                    f"{name} is undecided or not finite in {cases} cases, at {places}: they are left out, and float64 "
                    "may have them."
                )
        return tuple(said)

    def result(self) -> Diagnosis:
        """The diagnosis of the windows so far."""
        added = self._added
        if not added.windows:
            raise ValueError("`add` must have been given at least one window, got none")
        layer, depth = self.spec.attention, self.spec.depth
        with np.errstate(invalid="ignore", divide="ignore"):
            states = {name: total / added.finite[name] for name, total in added.states.items()}
        # An entry of a token is a sum of d_model products, whose rounding errors add up as independent ones do.
        dtype = _wide(self.checkpoint.params.attention.query[:0]).dtype
        floor = float(jnp.finfo(dtype).eps) * layer.d_model**0.5
        notes = [f"{name} is left out: {reason}." for name, reason in self.reasons.items()]
        if (states["relative_residual"] < floor).any():
            notes.append(f"‖res‖/‖X‖ below {floor:.0e} is rounding, and so is every number of the layers after it.")
        return Diagnosis(
            of_layers(added.heads) | states,
            tokens=self.tokens,
            samples=added.windows,
            layers=depth,
            heads=layer.heads,
            numbers=tuple(range(depth)),
            causal=layer.causal,
            threshold=SINK,
            notes=(*notes, *self.left_out),
            by_text={
                "sample": np.arange(added.windows),
                "start": np.zeros(added.windows, int),
                "tokens": np.full(added.windows, self.tokens),
                **{name: values[: added.windows].copy() for name, values in self._own.items()},
            },
        )

    def _observe(self, x: Array, count: int) -> tuple[list[Observed], dict[str, np.ndarray]]:
        """What `count` windows give: their heads by layer, and the measures of their states, (window, layer + 1)."""
        params, stack = self.checkpoint.params, self.spec
        bare = dataclasses.replace(stack, skip=True, mlp=None, norm=None)  # the network whose paths are summed
        logs = self._covered("log_residual", log_residuals, x, stack)
        paths = self._covered("path_share", path_shares, x, bare)
        # One layer after another, so that only one layer's attention matrices are in memory.
        x = _wide(x)
        there = jnp.ones(x.shape[:2], bool)
        heads, states = [], [measures_of(x, there)]
        for index in range(stack.depth):
            kind = stack.kind_of(index)
            x, p, v = layer(params, jnp.asarray(index), x, stack.kinds[kind])
            passed = pass_over(p[:count], self._seen[kind], v[:count], full=False)
            del p
            check(passed, self._seen[kind], passed.rows.total.dtype, index)
            heads.append(observe(passed, self._seen[kind], SINK))
            states.append(measures_of(x, there))
        observed = with_rates({name: np.stack([np.asarray(each[name]) for each in states]) for name in states[0]})
        measured = {name: values.T for name, values in observed.items()}
        if logs is not None:
            measured["log_residual"] = np.asarray(logs)
        if paths is not None:
            measured |= {name: np.asarray(value) for name, value in paths.items()}
        return heads, {name: np.asarray(values, np.float64)[:count] for name, values in measured.items()}

    def _covered(self, name: str, program: Any, x: Array, spec: StackSpec) -> Any:
        """The result of a program; None, with the reason stored, where theory does not cover the network."""
        if name in self.reasons:
            return None
        try:
            return program(self.checkpoint.params, x, spec)
        except NotCovered as error:
            self.reasons[name] = str(error)
            return None


@arguments.guard()
def trace(
    checkpoint: Checkpoint,
    windows: Int[np.ndarray | Array, "window token"],
    *,
    switches: Iterable[str] = SWITCHES,
    batch_size: int | None = None,
    exact: bool = True,
    progress: bool = False,
) -> Diagnosis:
    """Measure what each layer and each head of a trained network does to the tokens of a text.

    The result is a `rc_jax.diagnostics.Diagnosis` with all measures of `rc_jax.diagnostics.attention`, values included,
    and of `rc_jax.diagnostics.hidden_states`, under the masks of the network. Three more stand beside the states, each
    with layer + 1 entries:

        log_residual         log ‖res(X^l)‖_F in cancellation-free arithmetic, in nats
        path_share           ⟨Y_k, X^L⟩/‖X^L‖² of the paths through k heads, k = 0 … L
        path_residual_share  the same of the residuals of Y_k and X^L

    Path shares are those of the same attention with skip connections and without MLPs and norms. Layers are computed
    in float32 at least, log residuals and path shares in the checkpoint's own precision. Means are over windows. All
    this is independent of `batch_size`, to rounding.

    Args:
        checkpoint: from `load`.
        windows: token ids, as from `cut`.
        switches: which of "skip" and "mlp" are on; attention always is, and norms stay as the checkpoint has them. An
            MLP that is off takes its norm with it.
        batch_size: windows at a time; by default up to 8 that keep a layer's attention matrices below 64 MB.
        exact: whether to compute the log residual, in cancellation-free arithmetic, which takes longest.
        progress: whether to show a bar on stderr.

    Raises:
        ValueError: more tokens than the model takes, an id without embedding, an unknown switch, a network whose
            attention is not softmax over tokens, or one whose numbers are not finite.

    Source: Dong, Cordonnier and Loukas (2021), section 4, for residuals with parts switched off; the shares are this
        package's own.

    Example:
        >>> from rc_jax import pretrained
        >>> checkpoint = pretrained.load(pretrained.packaged_checkpoint())
        >>> windows = pretrained.cut(checkpoint, "Attention without skips loses rank.").ids
        >>> traced = trace(checkpoint, windows, exact=False)
        >>> traced["sparsity"].shape, traced["relative_residual"].shape, traced["path_share"].shape
        ((6, 12), (7,), (7,))
    """
    arguments.integer_array("window", "token", window=1, token=2)("windows", windows)
    windows = np.asarray(windows)
    size = windows_at_a_time(checkpoint, windows, batch_size)
    tracer = Tracer(checkpoint, windows.shape[1], size, switches=switches, exact=exact)
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


@functools.partial(jax.jit, static_argnames="spec")
def layer(
    params: LayerParams, index: Int[Array, ""], x: Float[Array, "window token feature"], spec: StackSpec
) -> tuple[Array, Float[Array, "window head token token"], Float[Array, "window head token width"]]:
    """The tokens after a layer, and the weights and values of its attention.

    Parameters are as the checkpoint rounds them, one layer widened at a time. All layers of a kind share one program.
    """
    weights = jax.tree.map(lambda leaf: _wide(jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False)), params)
    arithmetic = plain_arithmetic(spec, None, None)

    def one(tokens: Array) -> tuple[Array, Array, Array]:
        observed = []

        def attend(part: AttentionParams, read: Array) -> Array:
            # What the attention reads is the layer's input, or its norm.
            v = jnp.einsum("nd,hde->hne", read, part.value, precision=spec.attention.precision)
            v = v if part.value_bias is None else v + part.value_bias[:, None]
            observed.append((attention.attention_weights(part, read, spec.attention), v))
            return arithmetic.attend(part, read)

        out = block(weights, tokens, spec, dataclasses.replace(arithmetic, attend=attend))
        return out, *observed[0]

    return jax.lax.map(one, x)


@functools.partial(jax.jit, static_argnames="spec")
def log_residuals(params: LayerParams, x: Float[Array, "window token feature"], spec: StackSpec) -> Array:
    """Log ‖res(X^l)‖_F of each window in cancellation-free arithmetic: (window, layer + 1)."""
    return jax.lax.map(lambda tokens: collapse.log_residuals(params, tokens, spec), x)


@functools.partial(jax.jit, static_argnames="spec")
def path_shares(
    params: LayerParams, x: Float[Array, "window token feature"], spec: StackSpec
) -> dict[str, Float[Array, "window length"]]:
    """Share ⟨Y_k, X^L⟩/‖X^L‖² of the paths of each length, of the output and of its residual.

    Plain sums are exact enough: a network with skip connections keeps its tokens apart.
    """

    def shares(parts: Array) -> Array:
        parts = parts / jnp.max(jnp.abs(parts))
        whole = jnp.sum(parts, axis=0)
        return jnp.sum(parts * whole[None], axis=(1, 2)) / jnp.sum(jnp.square(whole))

    def one(tokens: Array) -> dict[str, Array]:
        sums = _wide(collapse.path_length_sums(params, tokens, spec))
        return {"path_share": shares(sums), "path_residual_share": shares(jax.vmap(collapse.residual)(sums))}

    return jax.lax.map(one, x)


def _wide(x: Array) -> Array:
    """The numbers in float32, or in float64 if that is what they are."""
    return x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)


def _window(tokens: int, spec: AttentionSpec) -> Bool[np.ndarray, "1 1 token token"] | None:
    """The tokens that each token sees where it is not all, or all up to its own."""
    seen = masks.combine(tokens, causal_mask=spec.causal, radius=spec.window, extra=None)
    return None if spec.window is None or seen is None else np.asarray(seen)[None, None]


def _written(kept: np.ndarray | None, start: int, values: np.ndarray) -> np.ndarray:
    """Numbers with some more from a place on; where there is no room for them, in an array of twice the size."""
    end = start + len(values)
    if kept is None or end > len(kept):
        wider = np.empty((max(end, 2 * start), *values.shape[1:]), values.dtype)
        if kept is not None:
            wider[:start] = kept[:start]
        kept = wider
    kept[start:end] = values
    return kept


def _switched(spec: StackSpec, switches: Iterable[str]) -> StackSpec:
    """The network with skip connections and MLPs only where they are named; norms stay as they are."""
    if isinstance(switches, str) or not isinstance(switches, Iterable):
        raise TypeError(f"`switches` must be several names, got {arguments.describe(switches)}")
    named = list(switches)
    for name in named:
        if name not in SWITCHES:
            raise ValueError(f"`switches` must be among {', '.join(SWITCHES)}, got {name!r}")
    return dataclasses.replace(spec, skip=spec.skip and "skip" in named, mlp=spec.mlp if "mlp" in named else None)
