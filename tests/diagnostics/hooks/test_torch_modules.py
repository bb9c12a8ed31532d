"""Weights of `nn.MultiheadAttention`: those of its own arithmetic, in every way that it is called."""

import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
N, WIDTH, HEADS = 7, 8, 2


def by_hand(layer, x, hidden=None):
    """Softmax of q·k/√d of each head in NumPy, from the stored matrices; x is (batch, n, width)."""
    matrix, bias = (part.detach().double().numpy() for part in (layer.in_proj_weight, layer.in_proj_bias))
    q, k, _ = np.split(x.detach().double().numpy() @ matrix.T + bias, 3, axis=-1)
    q, k = (part.reshape(len(x), -1, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3) for part in (q, k))
    logits = q @ k.transpose(0, 1, 3, 2) / np.sqrt(WIDTH // HEADS)
    return dense.softmax(logits if hidden is None else np.where(hidden, -1e300, logits))


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.5, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2)


def test_the_weights_are_those_of_the_layers(encoder):
    """Also under a causal mask and padding, which an encoder hands on; the second layer reads what the first gives."""
    x, causal = torch.randn(3, N, WIDTH), torch.triu(torch.ones(N, N, dtype=torch.bool), 1)
    padding = torch.zeros(3, N, dtype=torch.bool)
    padding[1, 5:] = True
    for kwargs, hidden in (
        ({}, None),
        ({"mask": causal}, causal.numpy()),
        ({"src_key_padding_mask": padding}, padding.numpy()[:, None, None]),
    ):
        weights = diagnostics.torch_weights(encoder, x, **kwargs)
        assert list(weights) == ["layers.0.self_attn", "layers.1.self_attn"]
        expected = by_hand(encoder.layers[0].self_attn, x, hidden)
        np.testing.assert_allclose(weights["layers.0.self_attn"], expected, atol=1e-6)
        after = encoder.eval().layers[0](
            x, **{k.replace("mask", "src_mask") if k == "mask" else k: v for k, v in kwargs.items()}
        )
        encoder.train()
        expected = by_hand(encoder.layers[1].self_attn, after, hidden)
        np.testing.assert_allclose(weights["layers.1.self_attn"], expected, atol=2e-6)


def test_the_training_stays_as_it_was(encoder):
    encoder.layers[1].eval()
    x = torch.randn(3, N, WIDTH)
    torch.manual_seed(5)
    plain = encoder(x)
    torch.manual_seed(5)
    diagnostics.torch_weights(encoder, x)
    np.testing.assert_array_equal(encoder(x).detach(), plain.detach())
    assert [layer.training for layer in encoder.layers] == [True, False] and torch.backends.mha.get_fastpath_enabled()
    assert not encoder.layers[0].self_attn._forward_hooks and not encoder.layers[0].self_attn._forward_pre_hooks


def test_several_calls_and_every_way_of_calling():
    layer = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, y):
            x, none = self.layer(x, x, x, None, False)
            assert none is None
            return self.layer(query=x, key=y, value=y, need_weights=False)[0]

    x, y = torch.randn(3, N, WIDTH), torch.randn(3, 4, WIDTH)
    weights = diagnostics.torch_weights(Twice(), x, y)
    assert {name: tuple(each.shape) for name, each in weights.items()} == {
        "layer": (3, HEADS, N, N),
        "layer, call 2": (3, HEADS, N, 4),
    }
    np.testing.assert_allclose(weights["layer"], by_hand(layer, x), atol=1e-6)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    "asked", [{}, {"need_weights": False}, {"average_attn_weights": False}, {"average_attn_weights": True}]
)
def test_a_model_gets_the_weights_that_it_asked_for(asked, batched, batch_first):
    """And so do its own hooks; in evaluation mode the first of these layers would take PyTorch's fused path."""
    torch.manual_seed(0)
    hooked = []

    class Reads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first) for _ in "ab")
            self.first.register_forward_hook(lambda layer, args, output: hooked.append(output[1]))

        def forward(self, x):
            y, weights = self.first(x, x, x, **asked)
            self.got = weights
            y = y if weights is None else y * (1 + 10 * weights.amax(-1).std())
            return self.second(y, y, y, average_attn_weights=False)[1]

    model, x = Reads().eval(), torch.randn(*((3, N, WIDTH) if batched else (N, WIDTH)))
    with torch.no_grad():
        expected, got = model(x).numpy(), model.got
        weights = diagnostics.torch_weights(model, x)
    np.testing.assert_allclose(weights["second"], expected, rtol=1e-5, atol=1e-6)
    assert hooked[1] is model.got
    if got is None:
        assert model.got is None
    else:
        np.testing.assert_allclose(model.got, got, rtol=1e-5, atol=1e-6)
    assert weights["first"].shape[-3:] == (HEADS, *weights["first"].shape[-2:])


def test_the_log_of_a_loop(encoder):
    x = torch.randn(3, N, WIDTH)
    weights = diagnostics.torch_weights(encoder, x)
    whole = diagnostics.attention(list(weights.values()))
    logged = diagnostics.metrics(weights)
    for name in ("relative_entropy", "largest_weight", "sink_weight"):
        np.testing.assert_allclose(logged[name], whole[name].mean(), rtol=2e-6)


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    with pytest.raises(TypeError, match="`model` must be a module of PyTorch, got 3"):
        diagnostics.torch_weights(3)
    with pytest.raises(ValueError, match="got no such layer in Linear: with queries and keys"):
        diagnostics.torch_weights(torch.nn.Linear(2, 2), torch.ones(1, 2))


def test_a_layer_with_defaults_and_results_of_its_own_stays_as_it_is():
    class Own(torch.nn.MultiheadAttention):
        def forward(self, *args, need_weights=False, **kwargs):
            return (*super().forward(*args, need_weights=need_weights, **kwargs), "more")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.got = Own(8, 2, batch_first=True), []

        def forward(self, x):
            self.got.append(self.layer(x, x, x)[1:])

    model = Model()
    weights = diagnostics.torch_weights(model, torch.ones(2, 4, 8))
    assert {name: tuple(each.shape) for name, each in weights.items()} == {"layer": (2, 2, 4, 4)}
    assert model.got == [(None, "more")]
