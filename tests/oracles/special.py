"""Bessel and Lambert functions by arbitrary-precision series, sharing nothing with the package's expansions."""

from dataclasses import dataclass

import mpmath as mp


@dataclass(frozen=True)
class Bessel:
    """Everything the package computes about I_v(x), v = b − 1, x = 2√z, as mpmath numbers."""

    log_hyp0f1: mp.mpf
    hyp0f1_z: mp.mpf
    hyp0f1_zz: mp.mpf
    hyp0f1_b: mp.mpf
    log_i: mp.mpf
    ratio: mp.mpf
    ratio_x: mp.mpf
    log_i_order: mp.mpf


def log_hyp0f1(b, z):
    """log ₀F₁(; b; z) by the power series, mpmath's own where that is quick."""
    if b < 10_000:
        return mp.log(mp.hyp0f1(b, z, maxterms=10**7))
    b, z = mp.mpf(b), mp.mpf(z)
    term, total, k = mp.mpf(1), mp.mpf(1), 0
    while term > total * mp.eps or (b + k) * (k + 1) < z:
        term *= z / ((b + k) * (k + 1))
        total += term
        k += 1
    return mp.log(total)


def bessel(order: float, x: float) -> Bessel:
    """All values and derivatives at one point, 60 digits in the working, derivatives in order by difference."""
    with mp.workdps(60):
        v, x = mp.mpf(order), mp.mpf(x)
        b, z, step = v + 1, x * x / 4, mp.mpf(10) ** -20
        log, log1, log2 = log_hyp0f1(b, z), log_hyp0f1(b + 1, z), log_hyp0f1(b + 2, z)
        first, second = mp.exp(log1 - log) / b, mp.exp(log2 - log1) / (b + 1)
        ratio = x / 2 * first
        slope_b = (log_hyp0f1(b + step, z) - log_hyp0f1(b - step, z)) / (2 * step)
        return Bessel(
            log_hyp0f1=log,
            hyp0f1_z=first,
            hyp0f1_zz=first * (second - first),
            hyp0f1_b=slope_b,
            log_i=log + v * mp.log(x / 2) - mp.loggamma(b),
            ratio=ratio,
            ratio_x=1 - ratio**2 - (2 * v + 1) / x * ratio,
            log_i_order=slope_b + mp.log(x / 2) - mp.digamma(b),
        )


def lambert_w0(x):
    """W₀(x), its first and its second derivative."""
    with mp.workdps(80):
        w = mp.lambertw(mp.mpf(x)).real
        slope = mp.exp(-w) / (1 + w)
        return w, slope, -slope * slope * (1 + 1 / (1 + w))


def lambert_w0_exp(t):
    """W₀(e^t)."""
    with mp.workdps(60):
        return mp.lambertw(mp.exp(mp.mpf(t))).real
