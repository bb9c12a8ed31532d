"""Entry point of `python -m experiments.benchmarks`."""

import os
import sys

COUNT = "--xla_force_host_platform_device_count"


def start() -> int:
    """Give XLA a device for each core: by default all cores are one device, on which a small network uses one core."""
    if COUNT not in os.environ.get("XLA_FLAGS", ""):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {COUNT}={cores}".strip()
    from experiments.benchmarks.command import main

    return main()


sys.exit(start())
