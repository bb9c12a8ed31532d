"""The reference of many digits knows every kind that it is asked for, or says so."""

import dataclasses

import jax
import numpy as np
import pytest

from rc_jax import attention, network
from rc_jax.attention import KINDS
from tests.oracles import many_digits


def one_layer(kind):
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=4, heads=2, weights=kind), depth=1)
    params = jax.tree.map(np.asarray, network.init(jax.random.key(0), spec))
    return params, np.asarray(jax.random.normal(jax.random.key(1), (3, 4))), spec


def test_a_kind_without_a_form_is_refused():
    """It had been softmax, so that the failure was two different arrays."""
    other = dataclasses.replace(KINDS["power6"], name="power4")
    with pytest.raises(NotImplementedError, match="`OTHER_KINDS` must have the kind, got 'power4'"):
        many_digits.log_residuals(*one_layer(other))
    assert np.isfinite(many_digits.log_residuals(*one_layer(KINDS["power6"]))).all()


def test_every_kind_of_scores_has_one_form():
    forms = [*many_digits.SOFTMAX_FORMS, *many_digits.OTHER_KINDS]
    assert len(set(forms)) == len(forms)
    assert {name for name, kind in KINDS.items() if kind.reads == "scores"} <= set(forms)
