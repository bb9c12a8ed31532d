"""The benchmarks there are, in the order in which they run; what they must have stands at the head of the package."""

MODULES = {
    "initialisations": "experiments.benchmarks.initialisations",
    "direct": "experiments.benchmarks.direct",
    "arithmetic": "experiments.benchmarks.arithmetic",
    "width_free": "experiments.benchmarks.width_free",
    "paths": "experiments.benchmarks.paths",
    "scale_grid": "experiments.benchmarks.scale_grid",
    "compile_time": "experiments.benchmarks.compile_time",
    "memory": "experiments.benchmarks.memory",
    "distributed": "experiments.benchmarks.distributed",
    "accelerator": "experiments.benchmarks.accelerator",
    "precision": "experiments.benchmarks.precision",
}
