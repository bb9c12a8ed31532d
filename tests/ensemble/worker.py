"""One process of several: `python -m tests.ensemble.worker JOB`, with what it needs to know as JSON."""

import hashlib
import json
import os
import signal
import sys

import jax
import numpy as np

from rc_jax import ensemble
from rc_jax.ensemble import resume


def observe(key):
    """By operations that round alike however they are compiled."""
    one, other = jax.random.split(key)
    return {"signed": jax.random.uniform(one, (3,), minval=-1, maxval=1), "number": jax.random.uniform(other) ** 2}


def digest(statistics):
    """Every bit of the statistics in a few letters."""
    arrays = statistics.to_arrays()
    return hashlib.sha256(b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))).hexdigest()[:16]


def _die_after(saves):
    """Kill this process without a word once it has stored that many files."""
    save, seen = resume.PartFiles.save, []

    def counted(files, piece):
        save(files, piece)
        seen.append(piece)
        if len(seen) == saves:
            os.kill(os.getpid(), signal.SIGKILL)

    resume.PartFiles.save = counted


def main(job):
    """Run the job's ensembles, print a line of JSON, and end without the ceremony of `jax.distributed`."""
    jax.distributed.initialize(job["address"], job["processes"], job["process"], cluster_detection_method="deactivate")
    key, digests = jax.random.key(0), {}
    for count in job["counts"]:
        digests[str(count)] = digest(ensemble.run(observe, key, count, batch_size=8))
    if job.get("local"):
        mesh = jax.sharding.Mesh(np.array(jax.local_devices()), ("sample",))
        number = job["process"]
        digests["local"] = digest(ensemble.run(observe, jax.random.key(number), 100, mesh=mesh))
    try:
        if job.get("differ"):
            ensemble.run(observe, key, 100 + job["process"])
        if "folder" in job:
            if job["process"] == job["dies"]:
                _die_after(2)
            with ensemble.kept(job["folder"], every=0):
                ensemble.run(observe, key, 3000, batch_size=8)
    except (ensemble.ProcessLost, ValueError) as error:
        digests["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(digests), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
