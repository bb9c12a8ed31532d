"""Maximisers of curves over a grid of scales, between the points of the grid, and their errors."""

import numpy as np


def peaks(alpha: np.ndarray, curves: np.ndarray, reach: int = 2) -> np.ndarray:
    """Maximiser of each curve (last axis): vertex of a parabola in log α through `reach` points beside the largest."""
    u = np.log(alpha)
    flat = curves.reshape(-1, alpha.size)
    best = np.empty(len(flat))
    for i, curve in enumerate(flat):
        top = np.clip(curve.argmax(), reach, alpha.size - 1 - reach)
        near = slice(top - reach, top + reach + 1)
        a, b, _ = np.polyfit(u[near] - u[top], curve[near], 2)
        best[i] = np.exp(u[top] - b / (2 * a))
    return best.reshape(curves.shape[:-1])


def jackknife(left_out: np.ndarray) -> np.ndarray:
    """Standard error from the values found with each batch left out (first axis)."""
    return np.sqrt((len(left_out) - 1) / len(left_out) * ((left_out - left_out.mean(0)) ** 2).sum(0))
