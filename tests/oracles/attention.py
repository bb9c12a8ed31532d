"""Other people's attention: PyTorch's and Flax's multi-head layers loaded with our weights."""

import numpy as np


def torch_attention(params, x, mask=None):
    """`torch.nn.MultiheadAttention` in double precision with our weights; returns output and the heads' weights."""
    import torch

    heads, d_model, width = params.query.shape
    layer = torch.nn.MultiheadAttention(d_model, heads, batch_first=True, dtype=torch.float64)

    def flat(weight):  # (head, feature, width) to torch's (head·width, feature)
        return np.asarray(weight).transpose(0, 2, 1).reshape(heads * width, d_model)

    state = {
        "in_proj_weight": np.concatenate([flat(w) for w in (params.query, params.key, params.value)]),
        "in_proj_bias": np.concatenate(
            [np.asarray(b).ravel() for b in (params.query_bias, params.key_bias, params.value_bias)]
        ),
        "out_proj.weight": np.asarray(params.output).reshape(heads * width, d_model).T,
        "out_proj.bias": np.asarray(params.output_bias),
    }
    layer.load_state_dict({name: torch.tensor(np.ascontiguousarray(value)) for name, value in state.items()})
    tokens = torch.tensor(np.asarray(x))[None]
    hidden = None if mask is None else ~torch.tensor(np.asarray(mask))
    with torch.no_grad():
        out, weights = layer(tokens, tokens, tokens, attn_mask=hidden, average_attn_weights=False)
    return out[0].numpy(), weights[0].numpy()


def flax_attention(params, x, mask=None):
    """`flax.linen.MultiHeadDotProductAttention` with the weights of `params`."""
    import flax.linen as nn

    heads, d_model, _ = params.query.shape
    layer = nn.MultiHeadDotProductAttention(num_heads=heads, qkv_features=d_model, precision="highest")

    def kernel(weight, bias):  # (head, feature, width) to flax's (feature, head, width)
        return {"kernel": weight.transpose(1, 0, 2), "bias": bias}

    variables = {
        "query": kernel(params.query, params.query_bias),
        "key": kernel(params.key, params.key_bias),
        "value": kernel(params.value, params.value_bias),
        "out": {"kernel": params.output, "bias": params.output_bias},
    }
    return layer.apply({"params": variables}, x[None], mask=None if mask is None else mask[None, None])[0]
