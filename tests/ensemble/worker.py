"""One process of several: `python -m tests.ensemble.worker JOB`, with what it needs to know as JSON."""

import hashlib
import json
import os
import sys

import jax

from rc_jax import ensemble


def observe(key):
    """By operations that round alike however they are compiled."""
    one, other = jax.random.split(key)
    return {"signed": jax.random.uniform(one, (3,), minval=-1, maxval=1), "number": jax.random.uniform(other) ** 2}


def digest(samples):
    """Every bit of the samples in a few letters."""
    leaves = jax.tree.leaves(samples)
    return hashlib.sha256(b"".join(f"{leaf.shape}".encode() + leaf.tobytes() for leaf in leaves)).hexdigest()[:16]


def main(job):
    """Run the job's ensembles, print a line of JSON, and end without the ceremony of `jax.distributed`."""
    if job["processes"] > 1:
        jax.distributed.initialize(
            job["address"], job["processes"], job["process"], cluster_detection_method="deactivate"
        )
    key, said = jax.random.key(0), {"devices": len(jax.devices())}
    for count in job["counts"]:
        said[str(count)] = digest(ensemble.run(observe, key, count, batch_size=8))
    # This process's own devices, and a number of samples of its own: nobody is waited for.
    own = 100 + job["process"]
    said["own"] = [own, digest(ensemble.run(observe, key, own, devices=jax.local_devices()))]
    if job["processes"] > 1:
        try:
            ensemble.run(observe, key, own)
        except ValueError as error:
            said["error"] = f"{error}"
    print(json.dumps(said), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
