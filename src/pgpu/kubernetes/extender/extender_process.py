"""Joins the scorer's parts: what follows the cluster, what answers the scheduler, and the server between them."""

import time
from collections.abc import Callable
from pathlib import Path

from pgpu.kubernetes.api import Cluster
from pgpu.kubernetes.extender.cluster_watch import watch_cluster
from pgpu.kubernetes.extender.extender_app import ExtenderApp
from pgpu.kubernetes.extender.extender_server import ListenOptions, serve
from pgpu.kubernetes.extender.scorer import Scorer


def run(kubeconfig: Path | None, listening: ListenOptions, say: Callable[[str], None]) -> None:
    """Score nodes for a scheduler until SIGTERM or SIGINT.

    Args:
        kubeconfig: How the API server is reached; None: as this pod's service account.
        listening: Where the scheduler asks.
        say: Called with each line of the log.

    Raises:
        RequestError: It must not listen like that.
        NodeError: It cannot listen there, or nothing says where the cluster is.
    """
    listening.check()
    scorer = Scorer(time.monotonic)
    cluster = Cluster.at(kubeconfig)
    follow = watch_cluster(cluster, scorer, say, time.monotonic)
    follow.start()
    try:
        serve(
            ExtenderApp(scorer, follow.is_current),
            listening,
            lambda port: say(f"nodes are scored at {_at(listening, port)}"),
        )
    finally:
        follow.stop()
        cluster.close()


def _at(listening: ListenOptions, port: int) -> str:
    host = f"[{listening.host}]" if ":" in listening.host else listening.host
    return f"{'http' if listening.certificate is None else 'https'}://{host}:{port}/prioritize"
