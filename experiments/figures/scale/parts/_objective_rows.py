"""Rows of the ledger on other objectives: the largest entry, the sixth power, both ends."""

import functools

import numpy as np

from experiments.figures._medians import median_error
from experiments.ledger import Measured, at_least, at_most, law, near, printed, published
from experiments.lib.figure import Data

SU, COMMENTS, PAGE = "su2023scale", "su2023scale-comments", "docs/scale_objectives.md"
NAMES = ("½‖J‖₁, trace", "largest entry", "Frobenius norm", "spectral norm")
LARGEST = NAMES.index("largest entry")
LOW, HIGH = 1.0, 5.0  # “the optimum is between 1 and 5”
CLEAN = 0.016  # relative misfit of a law that may be called clean
READ = ("power", "usual", "softmax", "longest")
LONGEST = 20_000  # keys, the most in the article's programs
FREE = ("x⁶/Σx⁶", "x/√(mean of x²)", "|x|/Σ|x|", "softmax of x/deviation")
FLAT = 0.05  # relative change below which a gradient does not depend on n
VANISHED = 0.01  # of its largest value over the scales
FOCUS = 0.05  # S below which focus-cannot calls a row focused
NEAR = (8, 64, 256, 1024, 4096)  # numbers of scores at which the sixth power's largest derivative is measured
LINEAR_FLOOR = float(np.sqrt(2 / np.pi))  # the least sparsity E|a|/√E a² of linear attention over normal keys

BY_INPUT = 1 / 3 - 1  # relative change of ∂y/∂x where x is scaled by 3: y(αx) = y(x), so ∂y/∂x falls as 1/α


def _grown(data: Data) -> Measured:
    """Relative changes of the sixth power's gradient: with the length of the input, and with the number of keys."""
    n, power, error = data["n"], data["power"], data["power_error"]
    ratio = power[-1] / power[0]
    return Measured(
        [data["homogeneous"], ratio - 1],
        standard_error=[0, ratio * np.hypot(error[0] / power[0], error[-1] / power[-1])],
        where=["length of the input", f"{n[0]} … {n[-1]} keys"],
        reads=[power, error],
        numbers={"grown": ratio - 1},
    )


def _over_softmax(data: Data) -> Measured:
    """The share of the article's n at which the sixth power's gradient is the larger one.

    Softmax is at the usual scale 1 and at its annealed optimum. The ratio is a line in log n between the n of the
    figure; a standard error of it moves the place where it crosses 1.
    """
    n = np.append(data["n"], LONGEST)
    (power, usual, best), (error, unsure, spread) = (
        [
            np.append(data[name + end], data[f"longest{end}"][at])
            for at, name in enumerate(("power", "usual", "softmax"))
        ]
        for end in ("", "_error")
    )
    grid = np.log(40.0 * np.arange(1, 501))
    shares, errors, ratios = [], [], []
    for softmax, own in ((usual, unsure), (best, spread)):
        ratio = power / softmax
        moved = ratio * np.hypot(error / power, own / softmax)
        low, middle, high = (np.mean(np.interp(grid, np.log(n), ratio + step * moved) > 1) for step in (-1, 0, 1))
        shares.append(middle)
        errors.append((high - low) / 2)
        ratios.append(ratio)
    return Measured(
        shares,
        standard_error=errors,
        where=["softmax at α = 1", "softmax at α*"],
        reads=[*ratios, *(data[f"{name}{end}"] for name in READ for end in ("", "_error"))],
        numbers={
            "least": ratios[0].min(), "first": ratios[1][0], "before": ratios[1][-2], "last": ratios[1][-1],
            "longest": LONGEST, "turn": _turn(n, ratios[1], 2), "typical": _turn(data["n"], _over_typical(data), 1),
        },
    )  # fmt: skip


def _over_typical(data: Data) -> np.ndarray:
    """The sixth power's mean gradient over that of softmax at its typical scale, by n."""
    scales = data["typical"][NAMES.index("½‖J‖₁, trace")]
    softmax = [
        np.interp(np.log(best), np.log(data["alpha"]), means)
        for best, means in zip(scales, data["norm"][0], strict=True)
    ]
    return data["power"] / np.array(softmax)


def _turn(n: np.ndarray, ratio: np.ndarray, digits: int) -> str:
    """Formula: where a falling ratio, a line in log n between those of the figure, passes 1, to so many digits."""
    below = np.flatnonzero(ratio < 1)
    if not below.size:
        return rf"n\gt{n[-1]}"
    if not (at := below[0]):
        return rf"n\lt{n[0]}"
    turn = np.exp(np.interp(0, 1 - ratio[at - 1 : at + 1], np.log(n[at - 1 : at + 1])))
    return rf"n\approx{float(f'{turn:.{digits - 1}e}'):.0f}"


def _misfits(data: Data) -> Measured:
    """Relative misfit of laws through the origin, and of a + b √log n with least relative squares."""
    best, error = data["typical"][LARGEST], data["typical_error"][LARGEST]
    forms = np.stack([np.ones(best.size), np.sqrt(np.log(data["n"]))], axis=1) / best[:, None]
    # The residual is a projection of ones; a change of one optimum by its error moves it by at most that error.
    left = 1 - forms @ np.linalg.lstsq(forms, np.ones(best.size), rcond=None)[0]
    spread = np.sqrt(np.mean(np.square(error / best)) / best.size)
    return Measured(
        [float(data["misfit"]), np.sqrt(np.mean(np.square(left)))],
        standard_error=[float(data["misfit_error"]), spread],
        where=["c log n or c √log n", "a + b √log n"],
        reads=[best, error],
        numbers={"first": data["n"][0], "last": data["n"][-1]},
    )


reader = functools.partial(published, source=COMMENTS, place="reader's comment, 2024-01-31")
ROWS = (
    # the article's central formula, against derivatives that do not use it
    published(
        "objectives-half-l1",
        r"Half of the $\ell_1$ norm of softmax's Jacobian $\partial p/\partial s$ is $\alpha(1-\sum p^{2})$.",
        lambda data: Measured(np.abs(data["half_l1"] - 1).max(), reads=[data["half_l1"]]),
        at_most(1e-9),
        formula=True,
        source=SU,
        place="section on the gradient",
        hypotheses=r"$p=\mathrm{softmax}(\alpha s)$; rows of 64 normal scores, $\alpha=0.1$, 2 and 8",
        interval_from="the formula is exact; rounding of float64",
        note="identity; measured: largest relative difference to automatic differentiation",
    ),
    reader(
        "objectives-entry-1-to-5",
        "The scale that is best for the largest entry of softmax's Jacobian is about 1 to 5.",
        lambda data: Measured(data["typical"][LARGEST], data["typical_error"][LARGEST], where=data["n"]),
        (LOW, HIGH),
        formula=True,
        needs="parts",
        hypotheses="the reader names neither $n$ nor the law of scores; here typical rows of normal scores",
        interval_from="the printed range",
        note="labels are $n$",
    ),
    reader(
        "objectives-entry-law",
        r"The scale that is best for the largest entry follows no clear $\log n$ law.",
        _misfits,
        at_least(CLEAN),
        needs="parts",
        formula=True,
        hypotheses=r"typical rows of normal scores, $n=<first>\thinspace\ldots\thinspace<last>$",
        interval_from=f"our tolerance: a law that misses by {CLEAN:.1%}, as the article's own fit, is clear",
        note=r"measured: relative misfit of the better of $c\log n$ and $c\thinspace\sqrt{\log n}$, and of "
        r"$a+b\thinspace\sqrt{\log n}$; that the second may have an intercept was allowed when it was known to fit",
        after_result=True,
    ),
    law(
        "objectives-entry-mean",
        r"The mean of the largest entry over rows of normal scores is larger at $\alpha=20$ than at $\alpha=5$.",
        lambda data: Measured(data["later"][-2], data["later_error"][-2], numbers={"keys": data["n"][-2]}),
        at_least(0),
        proof="measured",
        place=PAGE,
        hypotheses="$n=<keys>$",
        interval_from="the sign",
        note=r"it rises towards half of $E\max s$",
    ),
    reader(
        "objectives-power-scale",
        r"$x^{6}/\sum x^{6}$ is blind to a scaling of its input forwards, and so is its gradient.",
        lambda data: Measured(float(data["homogeneous"]), numbers={"by_input": BY_INPUT}),
        near(0, 1e-4),
        formula=True,
        hypotheses="nothing is added to the denominator",
        interval_from="rounding of float32",
        note=r"relative change under $\alpha=3$ of the gradient by the scores $s$ of $x=\alpha s$, the reader's scale "
        r"being inside; by $x$ it falls as $1/\alpha$, a change of <by_input:.2f>",
    ),
    reader(
        "objectives-power-n",
        r"A change of length cannot influence the gradient of $x^{6}/\sum x^{6}$.",
        _grown,
        near(0, [1e-4, FLAT]),
        formula=True,
        needs="parts",
        hypotheses=r"standard normal scores, mean $\frac{1}{2}\lVert J\rVert_1$; length read in both ways",
        interval_from="rounding of float32; our tolerance of a twentieth",
        note="measured: relative change, <grown:.0%> with the keys, which tends to a constant: much weaker than a "
        "power of $n$",
    ),
    reader(
        "objectives-power-larger",
        r"The gradient of $x^{6}/\sum x^{6}$ is larger than softmax's most of the time.",
        _over_softmax,
        at_least(0.5),
        formula=True,
        needs="parts",
        hypotheses=r"standard normal scores, mean $\frac{1}{2}\lVert J\rVert_1$; the reader names no scale of softmax; "
        r"$n=40\thinspace\ldots\thinspace20000$ in steps of 40, as in the article",
        after_result=True,
        interval_from="our reading of most: half of the article's own $n$; made when the ratio was known",
        note=r"measured: the share of the 500 $n$ at which it is larger; the ratio at $\alpha=1$ is at least "
        r"<least:.2f>, at $\alpha^{\ast}$ <first:.2f> at $n=16$, <before:.2f> at 4096 and <last:.2f> at <longest>: "
        "softmax's best grows with $n$ and passes it at $<turn>$; at the typical scale, which is larger than "
        r"$\alpha^{\ast}$ and which the reader does not speak of, softmax's mean passes it at $<typical>$ already",
    ),
    reader(
        "objectives-quarter",
        "The largest entry of softmax's Jacobian is 0.25.",
        lambda data: data["quarter"],
        printed("0.25"),
        formula=True,
        hypotheses=r"$p=\mathrm{softmax}(x)$; rows of 2 to 64 normal scores at 25 scales",
        interval_from="the printed digits",
        note="measured by automatic differentiation: the largest of all; $p(1-p)$ is largest at "
        r"$p=\frac{1}{2}$, so that 4 times softmax has the largest derivative 1, as the reader says",
    ),
    reader(
        "objectives-near-one",
        "The largest entry of the Jacobian of $x^{6}/\\sum x^{6}$ at a quarter of the scores is rather near 1.",
        lambda data: Measured(
            np.median(data["near_one"], axis=1),
            standard_error=median_error(data["near_one"].T),
            where=[f"n = {n}" for n in NEAR],
            reads=[data["near_one"], data["near_one_signed"]],
            numbers={
                "rows": data["near_one"].shape[1],
                "low": data["near_one"].min(),
                "high": data["near_one"].max(),
                "medians": ", ".join(f"{size:.2f}" for size in np.median(data["near_one"], axis=1)),
                "signed": " and ".join(f"{size:.2f}" for size in np.median(data["near_one_signed"], axis=1)),
            },
        ),
        (0.5, 2),
        formula=True,
        needs="parts",
        hypotheses="the reader names neither $n$ nor the law of scores; here normal scores, derivative by them, "
        f"$n={', '.join(map(str, NEAR))}$; magnitudes, so that a large negative derivative counts",
        after_result=True,
        interval_from="our reading of near: a factor of 2; an estimate was known, and that $n$ above 64 count was "
        "chosen when their values were",
        note="medians of <rows> rows: <medians>; it falls with $n$, as the largest weight does; single "
        "rows from <low:.2f> to <high:.2f>; with their signs the largest entries have medians of <signed> at "
        "$n=8$ and 64; a quarter, as any factor, changes nothing, as the reader says later",
    ),
    reader(
        "objectives-scale-free",
        "All functions with $f(ax)=f(x)$ should be blind to a scaling of their input backwards too.",
        lambda data: Measured(data["scale_free"], where=FREE),
        near(0, 1e-4),
        formula=True,
        hypotheses="four such functions, among them RMS normalisation, which the reader names",
        interval_from="rounding of float32",
        note=r"relative change of the derivative by $s$ of $f(as)$ from $a=1$ to 3; by $x=as$ itself it falls as $1/a$",
    ),
    published(
        "objectives-power-sparse",
        "Weights in proportion to $x^{6}$ can very probably guarantee sparsity too.",
        lambda data: Measured(
            data["sixth_sparsity"].min(),
            reads=[data["sixth_sparsity"]],
            numbers={"least": data["sixth_sparsity"].min()},
        ),
        at_most(FOCUS),
        formula=True,
        source=COMMENTS,
        place="reply of 2024-01-31",
        hypotheses=r"the measure $E\lvert a\rvert/\sqrt{E\thinspace a^{2}}$ that the reply refers to; normal scores "
        "of any mean and spread",
        interval_from="what focus-cannot calls sparse; chosen when the floor was known",
        after_result=True,
        note=rf"its floor is <least:.3f>, far below the $\sqrt{{2/\pi}}={LINEAR_FLOOR:.3f}$ of linear attention, which "
        "every kernel of the map reaches; softmax has none",
        elsewhere="the reply says very probably and names no number: how sparse is enough is left open",
    ),
    published(
        "objectives-ends",
        r"The gradient of softmax vanishes as $\alpha$ goes to 0, and as $\alpha$ goes to infinity where the largest "
        "score is unique.",
        lambda data: Measured(
            data["ends"].max(1), where=["α = 0.001", "α = 40/top gap"], numbers={"rows": data["ends"].shape[1]}
        ),
        at_most(VANISHED),
        formula=True,
        source=SU,
        place="section on the gradient, below its matrix, 2023-10-22",
        hypotheses=r"$\frac{1}{2}\lVert J\rVert_1$ of <rows> rows of 64 normal scores",
        interval_from="our tolerance: a hundredth of a row's largest gradient",
        note="measured: largest over rows",
    ),
)
