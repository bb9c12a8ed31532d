"""A training small enough for every test: one layer learns to sort three symbols, two settings, two seeds."""

import jax
import jax.numpy as jnp
import optax

from rc_jax import network, training
from rc_jax.attention import AttentionSpec

SPEC = training.ModelSpec(
    stack=network.StackSpec(attention=AttentionSpec(d_model=4, heads=1), depth=1, skip=True),
    inputs=5,
    outputs=5,
    tokens=3,
)
SETTINGS = {"scale": jnp.array([0.5, 2.0]), "rate": jnp.array([0.02, 0.01])}


def build(key, setting):
    return training.Transformer(key, SPEC)


def loss(model, batch, setting):
    return training.cross_entropy(jax.vmap(lambda x: model(x, scale=setting["scale"]))(batch), jnp.sort(batch))


def batches(key, step):
    return jax.random.randint(jax.random.fold_in(key, step), (4, 3), 0, 5)


def adam(setting):
    return optax.adam(setting["rate"])


def observe(model, setting):
    return {"readout": model.readout[...]}


def run(steps=6, **options):
    settings = {"settings": SETTINGS, "seeds": 2, "optimiser": adam, "observe": observe, "every": 2} | options
    return training.train(jax.random.key(3), build, loss, batches, steps=steps, **settings)
