"""Where curves over a grid of scales are largest, between the points of the grid."""

import numpy as np


def peaks(alpha: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """Where each curve (last axis) peaks in log α: vertex of the parabola through the five points around its top."""
    u = np.log(alpha)
    flat = curves.reshape(-1, alpha.size)
    found = np.empty(len(flat))
    for i, curve in enumerate(flat):
        top = np.clip(curve.argmax(), 2, alpha.size - 3)
        near = slice(top - 2, top + 3)
        a, b, _ = np.polyfit(u[near] - u[top], curve[near], 2)
        found[i] = np.exp(u[top] - b / (2 * a))
    return found.reshape(curves.shape[:-1])
