"""Make the jobs of the first argument on a Ray cluster of two machines, one of which dies at work."""

import json
import sys
import threading

import ray
from ray.cluster_utils import Cluster

from mipl.data.sources import Source
from mipl.experiments.engines import run_jobs
from mipl.experiments.runner import Job

jobs = [
    Job(
        **{
            **fields,
            "source": Source(**fields["source"]),
            "extras": tuple(fields["extras"]),
        }
    )
    for fields in json.loads(sys.argv[1])
]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
machine = cluster.add_node(num_cpus=1)
lost = threading.Event()
over = threading.Event()


def lose_the_machine():
    """Kill the second machine once it has a run: no CPU is free then on either."""
    while not over.wait(0.05):
        if ray.is_initialized() and ray.available_resources().get("CPU", 0) == 0:
            cluster.remove_node(machine, allow_graceful=False)
            lost.set()
            return


thread = threading.Thread(target=lose_the_machine, daemon=True)
thread.start()
failures = run_jobs(jobs, "ray", 2, cluster.address, show=False)
over.set()
thread.join()
cluster.shutdown()
print(json.dumps({"lost": lost.is_set(), "failures": [[job.split, reason] for job, reason in failures]}))
