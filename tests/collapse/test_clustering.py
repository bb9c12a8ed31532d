"""Tokens as particles: recursion, flow and time of one common cosine, and modes on the circle, by other arithmetic."""

import math

import mpmath
import numpy as np
import pytest
import scipy.special

from rc_jax.collapse.clustering import (
    circle_mode_growth,
    equiangular_flow,
    equiangular_layers,
    expected_circle_clusters,
    fastest_circle_mode,
)

NORMS = ("post", "pre", "peri", "ngpt")


def simplex(tokens, cosine):
    """Rows of length 1 with one common cosine: the Cholesky factor of their Gram matrix."""
    return np.linalg.cholesky((1 - cosine) * np.eye(tokens) + cosine)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def branch(x, beta):
    scores = np.exp(beta * unit(x) @ unit(x).T)
    return scores / scores.sum(axis=1, keepdims=True) @ unit(x)


def layer(norm, x, step, beta):
    """One layer as it is written in the docstring, in plain NumPy."""
    out = branch(x, beta)
    return {
        "post": lambda: unit(x + step * out),
        "pre": lambda: x + step * out,
        "peri": lambda: x + step * unit(out),
        "ngpt": lambda: unit((1 - step) * x + step * unit(out)),
    }[norm]()


@pytest.mark.parametrize("norm", NORMS)
def test_layers_against_a_network_in_plain_numpy(norm):
    radius, beta, steps = (1.7 if norm in ("pre", "peri") else 1.0), 3.0, np.linspace(0.2, 0.6, 9)
    x = radius * simplex(5, -0.1)
    states = equiangular_layers(steps, 5, beta, norm=norm, start=math.log(1.1), radius=radius)
    for at, step in enumerate(steps, start=1):
        x = layer(norm, x, step, beta)
        gram = unit(x) @ unit(x).T
        np.testing.assert_allclose(1 - gram[np.triu_indices(5, 1)], np.exp(states.log_gap[at]), rtol=1e-11)
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), states.radius[at], rtol=1e-13)


def precise_gap(tokens, beta, step, depth):
    """1 − cos after Post-LN layers on orthogonal tokens, by 120 digits of plain arithmetic on Gram matrices."""
    with mpmath.workdps(120):
        cosine, beta, step = mpmath.mpf(0), mpmath.mpf(beta), mpmath.mpf(step)
        for _ in range(depth):
            scores = [mpmath.exp(beta), mpmath.exp(beta * cosine)]
            own, other = (score / (scores[0] + (tokens - 1) * scores[1]) for score in scores)
            gram = cosine * mpmath.ones(tokens, tokens) + (1 - cosine) * mpmath.eye(tokens)
            mix = (1 + step * (own - other)) * mpmath.eye(tokens) + step * other * mpmath.ones(tokens, tokens)
            after = mix * gram * mix.T
            cosine = after[0, 1] / after[0, 0]
        return mpmath.log(1 - cosine)


@pytest.mark.parametrize(("beta", "step", "depth"), [(2.0, 1.0, 120), (60.0, 0.5, 2)])
def test_layers_are_not_blind_at_either_end(beta, step, depth):
    """A gap far below the rounding of a cosine, and a change of the gap far below that of 1."""
    log_gap, expected = equiangular_layers(np.full(depth, step), 3, beta).log_gap[-1], precise_gap(3, beta, step, depth)
    assert abs(log_gap / float(expected) - 1) < 1e-13
    assert log_gap < -150 or -1e-24 < log_gap < 0


def of_many(tokens, beta, step, depth):
    """log(1 − cos) after Post-LN layers on orthogonal tokens, by the two eigenvalues of their Gram matrix."""
    with mpmath.workdps(60):
        tokens, beta, alone, common = map(mpmath.mpf, (tokens, beta, 1, 1))
        for _ in range(depth):
            cosine = (common - alone) / tokens
            scores = mpmath.exp(beta), mpmath.exp(beta * cosine)
            own, other = (score / (scores[0] + (tokens - 1) * scores[1]) for score in scores)
            alone *= (1 + step * (own - other)) ** 2
            common *= (1 + step * (own - other + tokens * other)) ** 2
            length = alone + (common - alone) / tokens
            alone, common = alone / length, common / length
        return float(mpmath.log(alone))


@pytest.mark.parametrize(
    ("tokens", "beta", "step", "depth"),
    [
        (10**9, 0.5, 0.5, 40),
        (10**12, 0.5, 0.5, 40),
        (10**15, 0.0, 0.5, 45),
        (10**15, 0.5, 0.5, 60),
        (16, 9.0, 0.5, 400),
    ],
)
def test_layers_on_many_tokens(tokens, beta, step, depth):
    """Cosines that grow from far below a rounding of 1."""
    got = equiangular_layers(np.full(depth, step), tokens, beta).log_gap[-1]
    assert abs(got / of_many(tokens, beta, step, depth) - 1) < 1e-13


@pytest.mark.parametrize("norm", NORMS)
def test_flow_against_particles(norm):
    """The equations of all tokens and lengths, dθ = (I − θθᵀ)A/s, by Runge and Kutta's method in plain NumPy."""
    tokens, beta, radius, width = 4, 2.0, 1.5, 0.02
    grows, normed = norm in ("pre", "peri"), norm in ("peri", "ngpt")

    def speeds(directions, lengths):
        out = branch(directions, beta)
        out = unit(out) if normed else out
        along = (directions * out).sum(axis=1, keepdims=True)
        return (out - along * directions) / (lengths if grows else 1), along if grows else 0 * along

    at = [simplex(tokens, 0.0), np.full((tokens, 1), radius)]
    for _ in range(150):
        slopes = [speeds(*at)]
        for share in (0.5, 0.5, 1.0):
            slopes.append(speeds(*(each + share * width * slope for each, slope in zip(at, slopes[-1], strict=True))))
        at = [
            each + width / 6 * (a + 2 * b + 2 * c + d) for each, a, b, c, d in zip(at, *slopes, strict=True)
        ]  # fmt: skip
    flow = equiangular_flow(np.array([3.0]), tokens, beta, norm=norm, radius=radius)
    assert abs(-np.expm1(flow.log_gap[0]) - at[0][0] @ at[0][1]) < 1e-8
    assert abs(flow.radius[0] - (at[1][0, 0] if grows else 1)) < 1e-8


@pytest.mark.parametrize("norm", NORMS)
def test_layers_tend_to_the_flow(norm):
    """Their distance halves with the step."""
    flow = equiangular_flow(np.array([5.0]), 16, 3.0, norm=norm).log_gap[0]
    errors = [equiangular_layers(np.full(5 * m, 1 / m), 16, 3.0, norm=norm).log_gap[-1] - flow for m in (100, 200)]
    assert abs(errors[0] / errors[1] - 2) < 0.05


def slope(gap, tokens, beta):
    return (mpmath.exp(beta * gap) + tokens - 1) / (tokens - (tokens - 1) * gap) / 2


def test_the_flow_takes_the_time_of_its_integral():
    """dt = −(e^{βε} + n − 1)/(2(n − (n − 1)ε)) d log ε by mpmath, to cosines and to gaps below every number."""
    gaps, times = np.array([-0.5, -3.0, -40.0, -2000.0]), []
    for log_gap in gaps:
        panels = [*np.linspace(log_gap, -5, 4)] * int(log_gap < -5) + [*np.linspace(max(log_gap, -5), 0, 9)]
        with mpmath.workdps(30):
            times.append(float(mpmath.quad(lambda at: slope(mpmath.exp(at), 64, 6.0), panels)))
    np.testing.assert_allclose(equiangular_flow(np.array(times), 64, 6.0).log_gap, gaps, rtol=1e-8)


@pytest.mark.parametrize("tokens", [2, 100, 10**6, 10**9, 10**15])
def test_the_flow_of_even_attention_in_closed_form(tokens):
    times = np.array([0.0, 1e-9, 0.1, 2.0, 12.0, 20.0, 40.0, 300.0])
    exact = [float(-mpmath.log1p(mpmath.expm1(mpmath.mpf(2 * time)) / tokens)) for time in times]
    np.testing.assert_allclose(equiangular_flow(times, tokens, 0.0).log_gap, exact, rtol=1e-12)


@pytest.mark.parametrize(("tokens", "beta"), [(100, 20.0), (2, 20.0), (32, 30.0)])
def test_flow_of_tokens_that_stay_apart(tokens, beta):
    """The time to a cosine of 0.999, of up to 1e11, and errors that grow by the number of the docstring."""
    with mpmath.workdps(30):
        ends = [0, *(10.0**-k for k in range(18, 0, -1)), 0.999]
        time = mpmath.quad(lambda cosine: slope(1 - cosine, tokens, beta) / (1 - cosine), ends)
    error = equiangular_flow(np.array([float(time)]), tokens, beta).log_gap[0] - math.log(0.001)
    assert abs(error) < 1e-13 * (math.exp(beta) + tokens - 1) / tokens


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("tokens", [16, 10**9])
def test_layers_tend_to_the_flow_of_many_tokens(norm, tokens):
    """By Richardson's limit of 1000, 2000 and 4000 layers, which leaves terms of third order."""
    logs = [equiangular_layers(np.full(m, 2 / m), tokens, 0.5, norm=norm).log_gap[-1] for m in (1000, 2000, 4000)]
    limit = (logs[0] - 6 * logs[1] + 8 * logs[2]) / 3
    assert abs(equiangular_flow(np.array([2.0]), tokens, 0.5, norm=norm).log_gap[0] / limit - 1) < 1e-8


def test_growth_against_moved_lattices():
    """Softmax attention on 128 angles, moved by 10⁻⁶ sin kφ from a lattice: how fast the move grows."""
    beta, even = 6.0, 2 * np.pi * np.arange(128) / 128
    for k in (1, 3, 7):
        angles = even + 1e-6 * np.sin(k * even)
        apart = angles[:, None] - angles
        weights = np.exp(beta * np.cos(apart))
        speed = -(weights * np.sin(apart)).sum(axis=1) / weights.sum(axis=1)
        rate = (speed * np.sin(k * even)).sum() / (1e-6 * np.sin(k * even) ** 2).sum()
        assert abs(float(circle_mode_growth(k, beta)) / rate - 1) < 1e-5
    assert float(circle_mode_growth(0, beta)) == 0


def test_fastest_mode_against_bessel_functions():
    """Of mpmath, and the place √(2β − 1/3) of the maximum."""
    betas = np.array([0.1, 1.0, 2.5, 5.0, 7.0, 33.0, 400.0])
    rates = [[k**2 * mpmath.besseli(k, beta) for k in range(40)] for beta in betas]
    assert fastest_circle_mode(betas).tolist() == [max(range(40), key=row.__getitem__) for row in rates]
    for beta in (5.0, 50.0, 500.0):  # modes between the integers
        fine = math.sqrt(2 * beta - 1 / 3) + np.linspace(-0.5, 0.5, 2001)
        assert abs(fine[circle_mode_growth(fine, beta).argmax()] - fine[1000]) < 0.1 / beta + 5e-4
    assert abs(circle_mode_growth(fastest_circle_mode(1e5), 1e5) - 2 / math.e) < 1e-4


def test_modes_of_very_strong_attention_against_mpmath():
    """Rates beyond SciPy's Bessel functions, and where the fastest mode passes from k to k + 1."""
    with mpmath.workdps(40):
        for k, beta in ((1, 2e9), (3, 0.9e8), (141_421, 1e10), (500_000, 1e10), (20_000, 1.1e8)):
            exact = mpmath.mpf(k) ** 2 * mpmath.besseli(k, beta) / (mpmath.mpf(beta) * mpmath.besseli(0, beta))
            assert abs(float(circle_mode_growth(k, beta)) / float(exact) - 1) < 1e-12
        for k in (40, 900, 5000, 60_000):
            for beta in ((k * k + k + 0.5) / 2 + off for off in (-0.01, 0.01)):
                rates = {mode: mode**2 * mpmath.besseli(mode, beta) for mode in range(k - 1, k + 3)}
                assert fastest_circle_mode(beta) == max(rates, key=rates.__getitem__)
    assert fastest_circle_mode(np.array([1e10, 1e30])).tolist() == [141_421, 1_414_213_562_373_095]
    assert abs(float(expected_circle_clusters(1e10)) / math.sqrt(1.5e10) - 1) < 1e-9


def test_flow_at_equal_times():
    flow = equiangular_flow(np.repeat([0.0, 1.0, 2.0], 2), 16, 2.0, norm="pre")
    apart = equiangular_flow(np.array([0.0, 1.0, 2.0]), 16, 2.0, norm="pre")
    for each, once in zip(flow, apart, strict=True):
        np.testing.assert_array_equal(each, np.repeat(once, 2))


def test_expected_clusters_against_random_fields():
    """Maxima of Gaussian fields with the spectrum of the docstring, in standard errors."""
    beta, time, modes, angles = 9.0, 4.0, np.arange(1, 30), np.linspace(0, 2 * np.pi, 400, endpoint=False)
    rates = modes**2 * scipy.special.ive(modes, beta) / (beta * scipy.special.ive(0, beta))
    sizes = scipy.special.ive(modes, beta) * np.exp(rates * time)
    parts = np.random.default_rng(0).normal(size=(2, 4000, len(modes))) * sizes
    field = parts[0] @ np.cos(modes[:, None] * angles) + parts[1] @ np.sin(modes[:, None] * angles)
    count = ((field > np.roll(field, 1, 1)) & (field > np.roll(field, -1, 1))).sum(axis=1)
    z = (count.mean() - float(expected_circle_clusters(beta, time))) / (count.std() / math.sqrt(len(count)))
    assert abs(z) < 5
    assert abs(float(expected_circle_clusters(400.0)) / math.sqrt(600) - 1) < 1e-3
    assert abs(float(expected_circle_clusters(20.0, 2000.0)) - 6) < 1e-3


def test_one_cluster_where_attention_is_all_but_even(x64):
    np.testing.assert_array_equal(expected_circle_clusters(np.array([1e-50, 1e-200, 1e-307]), 1.0), 1)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: equiangular_layers([0.5], 1, 1.0), "`tokens` must be an integer >= 2, got 1"),
        (lambda: equiangular_layers([0.5], 4, -1.0), "`beta` must be >= 0, got -1"),
        (lambda: equiangular_layers([1.0], 4, 1.0, norm="ngpt"), "`steps` must be < 1 for norm='ngpt', got 1"),
        (lambda: equiangular_layers(0.5, 4, 1.0), "`steps` must be one number for each layer"),
        (lambda: equiangular_layers([0.5], 4, 1.0, norm="sandwich"), "`norm` must be one of 'post', 'pre'"),
        (lambda: equiangular_layers([0.5], 4, 1.0, start=0.3), "`start` must be < log"),
        (lambda: equiangular_flow([2.0, 1.0], 4, 1.0), "`times` must be numbers in rising order"),
        (lambda: circle_mode_growth(-1, 1.0), "`mode` must be >= 0, got -1"),
        (lambda: fastest_circle_mode(0.0), "`beta` must be > 0 and <= 1e\\+36, got 0"),
        (lambda: fastest_circle_mode(1e37), "`beta` must be > 0 and <= 1e\\+36, got 1e\\+37"),
        (lambda: expected_circle_clusters(1e20), "`beta` must be > 0 and <= 1e\\+12, got 1e\\+20"),
        (lambda: expected_circle_clusters(2.0, -1.0), "`time` must be >= 0, got -1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
