"""The layout of Llama and its kin: causal blocks with RMSNorm, rotary positions and a gated MLP.

X ← X + SA(RMSNorm(X)), X ← X + MLP(RMSNorm(X)), and an RMSNorm after the last layer (Touvron et al. 2023, "LLaMA",
section 2.2). Several queries may read one head of keys and values (Ainslie et al. 2023, "GQA"): here it is repeated.
In what a family differs stands in `FAMILIES`.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.attention.specification import QKNorm, assemble
from rc_jax.network import Experts, LayerParams, MLPParams, MLPSpec, NormParams, StackSpec
from rc_jax.network.specification import Norm
from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families.rope import pairs_together, read_rotary, read_two_rotaries
from rc_jax.pretrained.families.shared import Embeddings, Layout, Scope, activation, split_heads
from rc_jax.pretrained.tensor_source import Stored

FULL, SLIDING = "full_attention", "sliding_attention"


class Family(NamedTuple):
    """In what a family differs from the others; a setting that is not named is not looked at in it.

    Attributes:
        norm: where the norms of a layer stand.
        plus_one: what is stored of every gain is the gain less 1.
        qk_norm: how queries and keys are normed.
        input_bias: queries, keys and values have biases, whatever the settings.
        bias_settings: settings that switch on the biases of the attention and of the MLP.
        activation: the setting that names it, and its default.
        epsilon: default of the norms' ε.
        head_width: default; `None` for a share of the token's width.
        key_heads: default of the number of heads whose keys and values differ, 0 for all heads; `None` for no default.
        window: whether layers may have one: never, always, where its size is stated, where the settings say so, in all
            where it is asked for, or in all but every p-th layer.
        base: of the rotary positions where none is stated.
        scaled: √d_model multiplies the embeddings, and `query_pre_attn_scalar` divides the squared logits.
        cap: default of the logits' cap; `None` where the family has none.
        experts: where the MLP is one of experts.
    """

    norm: Norm = "pre"
    plus_one: bool = False
    qk_norm: QKNorm | None = None
    input_bias: bool = False
    bias_settings: tuple[str, ...] = ()
    activation: tuple[str, str] = ("hidden_act", "silu")
    epsilon: float = 1e-6
    head_width: int | None = None
    key_heads: int | None = None
    window: str | int = "never"
    base: float = 10_000.0
    scaled: bool = False
    cap: float | None = None
    experts: "ExpertNames | None" = None


class ExpertNames(NamedTuple):
    """How a family's settings and tensors name its experts.

    Attributes:
        number: the setting of their number, and its default.
        active: default of the number that a token takes.
        width: the setting of their width.
        normalised: whether shares add up to one always; `None` where `norm_topk_prob` says so.
        part: under which the router `gate` and the `experts` lie.
        maps: the tensors of an expert: gate, in and out.
    """

    number: tuple[str, int]
    active: int = 8
    width: str = "intermediate_size"
    normalised: bool | None = None
    part: str = "mlp"
    maps: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


_GEMMA = Family(
    norm="peri",
    plus_one=True,
    bias_settings=("attention_bias",),
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    head_width=256,
    key_heads=4,
    scaled=True,
)
FAMILIES = {
    "llama": Family(bias_settings=("attention_bias", "mlp_bias"), key_heads=0),
    "mistral": Family(window="always"),
    "qwen2": Family(input_bias=True, window="settings"),
    "qwen3": Family(bias_settings=("attention_bias",), qk_norm="rms", head_width=128, window="settings"),
    "olmo2": Family(norm="branch", qk_norm="rms_joint", bias_settings=("attention_bias",), epsilon=1e-5, key_heads=0),
    "mixtral": Family(
        epsilon=1e-5,
        base=1e6,
        key_heads=8,
        window="stated",
        experts=ExpertNames(
            ("num_local_experts", 8), 2, normalised=True, part="block_sparse_moe", maps=("w1", "w3", "w2")
        ),
    ),
    "qwen3_moe": Family(
        bias_settings=("attention_bias",),
        qk_norm="rms",
        key_heads=4,
        window="asked",
        experts=ExpertNames(("num_experts", 128), width="moe_intermediate_size"),
    ),
    "olmoe": Family(
        qk_norm="rms_joint",
        bias_settings=("attention_bias",),
        epsilon=1e-5,
        key_heads=0,
        experts=ExpertNames(("num_experts", 64)),
    ),
    "gemma2": _GEMMA._replace(window=2, cap=50.0),
    "gemma3_text": _GEMMA._replace(window=6, qk_norm="rms"),
}
# Where the gains of a layer's norms are stored.
_NORMS: dict[str, dict[str, str]] = {
    "pre": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "branch": {"attention_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm"},
    "peri": {
        "attention_norm": "input_layernorm",
        "attention_out_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_out_norm": "post_feedforward_layernorm",
    },
}


def layout(config: Config) -> Layout:
    """The settings that a family does not have are not looked at in it, as in the transformers library."""
    # The specification first; it says where the tensors lie and what shapes they have.
    family = FAMILIES[config.get("model_type")]
    biased = {setting: config.choice(setting, (False, True), False) for setting in family.bias_settings}
    output_bias = biased.get("attention_bias", False)
    spec = _spec(config, family, family.input_bias or output_bias)
    d, heads = spec.attention.d_model, spec.attention.heads
    default = heads if family.key_heads == 0 else family.key_heads
    stored = _Stored(
        family,
        spec,
        config.divisor("num_key_value_heads", "num_attention_heads", default),
        output_bias,
        biased.get("mlp_bias", False),
    )
    return Layout(
        spec=spec,
        embeddings=lambda at: Embeddings(word=at.take("embed_tokens.weight", config.integer("vocab_size"), d)),
        layer=lambda at, index: stored.layer(at.under(f"layers.{index}")),
        final_norm=lambda at: NormParams(scale=stored.gains(at, "norm", d)),
        root="model.",
        heads=("lm_head.*", "score.*", "classifier.*", "qa_outputs.*"),
        unused=("layers.*.rotary_emb.inv_freq", "rotary_emb.inv_freq"),
        most_tokens=config.integer("max_position_embeddings"),
        key_heads=stored.key_heads,
        embedding_factor=d**0.5 if family.scaled else 1.0,
    )


def _spec(config: Config, family: Family, biased: bool) -> StackSpec:
    d, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    # Where no width of heads is stated, they share the features of a token, but in families with a default. It is
    # even, because rotary positions rotate its features in pairs.
    if config.get("head_dim") is None and family.head_width is None:
        config.divisor("num_attention_heads", "hidden_size")
    width = config.integer("head_dim", family.head_width or d // heads)
    if width % 2:
        raise config.refuse("head_dim", "be even", width)
    epsilon = config.positive("rms_norm_eps", family.epsilon)
    # The two kinds of layers, of which a network has one or both: without a window and with one.
    kinds = _kinds(config, family)
    far, near = (
        read_two_rotaries(config)
        if family.qk_norm and family.scaled
        else (read_rotary(config, default_base=family.base),) * 2
    )
    full = AttentionSpec(
        d_model=d,
        heads=heads,
        d_head=width,
        causal=True,
        bias=biased,
        rotary=far,
        qk_norm=family.qk_norm,
        qk_norm_epsilon=epsilon,
        scale=config.positive("query_pre_attn_scalar", 256.0) ** -0.5 if family.scaled else None,
        soft_cap=_cap(config, family),
    )
    sliding = full
    if SLIDING in kinds:
        sliding = dataclasses.replace(full, rotary=near, window=_window(config))
    mixed = len(set(kinds)) == 2
    return StackSpec(
        attention=full if FULL in kinds else sliding,
        depth=len(kinds),
        skip=True,
        mlp=_mlp(config, family),
        norm=family.norm,
        norm_epsilon=epsilon,
        norm_kind="rms",
        local=sliding if mixed else None,
        local_layers=tuple(index for index, kind in enumerate(kinds) if kind == SLIDING) if mixed else (),
    )


def _mlp(config: Config, family: Family) -> MLPSpec:
    kind, names = activation(config, *family.activation), family.experts
    if names is None:
        return MLPSpec(width=config.integer("intermediate_size"), activation=kind, gated=True)
    # Experts in every layer, and nothing beside them.
    if config.several("mlp_only_layers", int):
        raise config.refuse("mlp_only_layers", "be empty: experts in all layers", config.get("mlp_only_layers"))
    config.choice("decoder_sparse_step", (1,), 1)
    if config.get("clip_qkv") is not None:
        raise config.refuse("clip_qkv", "be null", config.get("clip_qkv"))
    normalised = names.normalised
    if normalised is None:
        normalised = config.choice("norm_topk_prob", (False, True), False)
    # The transformers library writes the number under its own name for all families.
    count = config.integer(names.number[0], config.integer("num_local_experts", names.number[1]))
    active = config.integer("num_experts_per_tok", names.active)
    if active > count:
        raise config.refuse("num_experts_per_tok", f"be at most {names.number[0]}={count}", active)
    experts = Experts(count=count, active=active, normalised=normalised)
    return MLPSpec(width=config.integer(names.width), activation=kind, gated=True, experts=experts)


def _kinds(config: Config, family: Family) -> list[str]:
    """Whether each layer has a window, by the settings of the family."""
    depth = config.depth("num_hidden_layers")
    if family.window == "never":  # the setting is not looked at
        return [FULL] * depth
    unbounded = config.values.get("sliding_window", 1) is None  # null: no window
    if family.scaled:
        config.choice("use_bidirectional_attention", (False,), False)
    if isinstance(family.window, int):
        period = config.integer("sliding_window_pattern", family.window) if family.qk_norm else family.window
        default = [SLIDING if (index + 1) % period else FULL for index in range(depth)]
    elif family.window in ("settings", "asked"):
        asked = config.choice("use_sliding_window", (False, True), False)
        if not asked or unbounded:
            return [FULL] * depth
        if family.window == "asked":
            return _asked(config, depth)
        first = min(config.integer("max_window_layers", 28, least=0), depth)
        default = [FULL] * first + [SLIDING] * (depth - first)
    elif family.window == "stated":
        return [FULL if config.get("sliding_window") is None else SLIDING] * depth
    else:
        return [FULL if unbounded else SLIDING] * depth
    kinds = config.get("layer_types", default)
    if not isinstance(kinds, list) or len(kinds) != depth or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise config.refuse("layer_types", f"be {depth} of '{FULL}' and '{SLIDING}'", kinds)
    return kinds


def _asked(config: Config, depth: int) -> list[str]:
    """A window in all layers, as newer versions of transformers have it; older ones began at `max_window_layers`."""
    for name, same in (("max_window_layers", (None, 0)), ("layer_types", (None, [SLIDING] * depth))):
        if (value := config.get(name)) not in same:
            raise config.refuse(name, "be absent beside a window, as versions of transformers read it otherwise", value)
    return [SLIDING] * depth


def _window(config: Config) -> int:
    """The distance that a token sees back; the settings give the number of tokens, itself included."""
    return config.integer("sliding_window", None if "sliding_window" in config.values else 4096) - 1


def _cap(config: Config, family: Family) -> float | None:
    """The cap of the logits, absent where the setting is null; Gemma 3 has the setting and does not apply it."""
    if not family.scaled:
        return None
    if family.cap is None:
        if (value := config.get("attn_logit_softcapping")) is not None:
            raise config.refuse("attn_logit_softcapping", "be null in this family", value)
        return None
    absent = config.values.get("attn_logit_softcapping", family.cap) is None
    return None if absent else config.positive("attn_logit_softcapping", family.cap)


class _Stored(NamedTuple):
    """How the tensors of one checkpoint are stored."""

    family: Family
    spec: StackSpec
    key_heads: int
    output_bias: bool
    mlp_bias: bool

    def layer(self, at: Scope) -> LayerParams:
        """One layer."""
        d, mlp, experts = self.spec.attention.d_model, self.spec.mlp, self.family.experts
        assert mlp is not None
        if experts is None or mlp.experts is None:
            maps = self.map(at.under("mlp"), ("gate_proj", "up_proj", "down_proj"))
        else:
            part = at.under(experts.part)
            each = [self.map(part.under(f"experts.{index}"), experts.maps) for index in range(mlp.experts.count)]
            router = part.take("gate.weight", mlp.experts.count, d).T
            stacked: list[Stored] = [np.stack(several) for several in zip(*(one[:6] for one in each), strict=True)]
            maps = MLPParams(*stacked, weight_router=router)
        norms = {place: NormParams(self.gains(at, name, d)) for place, name in _NORMS[self.family.norm].items()}
        return LayerParams(
            attention=self.attention(at.under("self_attn")),
            mlp=maps,
            **norms,
        )

    def map(self, at: Scope, names: tuple[str, str, str]) -> MLPParams:
        """A gated map, whose tensors for the gate, in and out have these names."""
        d, mlp = self.spec.attention.d_model, self.spec.mlp
        assert mlp is not None
        linear = functools.partial(_linear, at, biased=self.mlp_bias)
        gate, gate_bias = linear(names[0], d, mlp.width)
        return MLPParams(*linear(names[1], d, mlp.width), *linear(names[2], mlp.width, d), gate, gate_bias)

    def attention(self, at: Scope) -> AttentionParams:
        """The attention of one layer."""
        spec, width = self.spec.attention, self.spec.attention.head_width
        # A head of keys and values is repeated for the queries that read it.
        weights: dict[str, Stored] = {}
        for role, letter, heads in (
            ("query", "q", spec.heads),
            ("key", "k", self.key_heads),
            ("value", "v", self.key_heads),
        ):
            weight, bias = _linear(at, f"{letter}_proj", spec.d_model, heads * width, biased=spec.bias)
            parts = {role: split_heads(weight, heads), f"{role}_bias": bias.reshape(heads, width)}
            for name, part in parts.items():
                if name == role or spec.bias:
                    paired = part if role == "value" else pairs_together(part)
                    weights[name] = np.repeat(paired, spec.heads // heads, axis=0)
        # The gains of normed queries and keys: the same for all heads, or its own for each.
        for role, letter, heads in (("query", "q", spec.heads), ("key", "k", self.key_heads)):
            if spec.qk_norm == "rms_joint":
                gains = pairs_together(self.gains(at, f"{letter}_norm", heads * width).reshape(heads, width))
                weights[f"{role}_norm"] = np.repeat(gains, spec.heads // heads, axis=0)
            elif spec.qk_norm is not None:
                gains = pairs_together(self.gains(at, f"{letter}_norm", width))
                weights[f"{role}_norm"] = np.broadcast_to(gains, (spec.heads, width))
        weight, bias = _linear(at, "o_proj", spec.heads * width, spec.d_model, biased=self.output_bias)
        weights["output"] = weight.reshape(spec.heads, width, spec.d_model)
        if spec.bias:
            weights["output_bias"] = bias
        return assemble(weights)

    def gains(self, at: Scope, name: str, width: int) -> Stored:
        """The gains of a norm; those that are stored less 1 are added up in float32 at least."""
        value = at.take(f"{name}.weight", width)
        if not self.family.plus_one:
            return value
        return 1 + (value if value.dtype.itemsize >= 4 else value.astype(np.float32))


def _linear(at: Scope, name: str, inputs: int, outputs: int, *, biased: bool) -> tuple[Stored, Stored]:
    """The matrix as (in, out), and the bias, 0 where the family has none."""
    if biased:
        return at.linear(name, inputs, outputs)
    weight = at.take(f"{name}.weight", outputs, inputs).T
    return weight, np.zeros(outputs, weight.dtype)
