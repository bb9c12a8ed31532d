"""The retrieval task: its answers are in its tokens, its posterior is a posterior, its seeds differ."""

import numpy as np

from experiments.figures.anatomy import _retrieval

TASK = _retrieval.Task(tokens=5, width=6, labels=3, noise=1e-3, batch=2, steps=4, test=7)


def test_who_knows_the_rotation_knows_the_answers():
    data = _retrieval.draw(0, 2, TASK)
    assert data["train"].x.shape == (2, 4, 2, 5, TASK.d_model)
    assert data["test"].x.shape == (2, 7, 5, TASK.d_model)
    for some in data.values():
        np.testing.assert_allclose(some.best.sum(-1), 1, rtol=1e-5)
        np.testing.assert_array_equal(some.best.argmax(-1), some.answer)


def test_questions_are_rotated_keys_of_tokens_with_the_answer():
    """The rotation, fitted from the first seed's questions, turns keys into questions and their labels into answers."""
    data = _retrieval.draw(0, 2, TASK)
    x, answer = np.asarray(data["train"].x[0], float).reshape(-1, 5, TASK.d_model), np.asarray(data["train"].answer[0])
    keys, labels, asked = x[..., :6], x[..., 6:9], x[..., 9:]
    lengths = np.abs(np.linalg.norm(asked, axis=-1)[:, :, None] - np.linalg.norm(keys, axis=-1)[:, None])
    source = lengths.argmin(-1)  # a rotation keeps lengths
    labelled = np.take_along_axis(labels.argmax(-1), source, 1)
    np.testing.assert_array_equal(labelled, answer.reshape(labelled.shape))
    pairs = np.take_along_axis(keys, source[..., None], 1).reshape(-1, 6), asked.reshape(-1, 6)
    turn = np.linalg.lstsq(*pairs, rcond=None)[0]
    np.testing.assert_allclose(turn @ turn.T, np.eye(6), atol=0.01)
    np.testing.assert_allclose(pairs[0] @ turn, pairs[1], atol=0.01)


def test_seeds_have_their_own_sequences_and_rotations():
    one, other = _retrieval.draw(0, 2, TASK), _retrieval.draw(1, 2, TASK)
    assert not np.array_equal(one["test"].x, other["test"].x)
    assert not np.array_equal(one["test"].x[0], one["test"].x[1])
    np.testing.assert_array_equal(one["test"].x, _retrieval.draw(0, 2, TASK)["test"].x)
