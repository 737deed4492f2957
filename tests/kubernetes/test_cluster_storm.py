"""More pods than fit, of all sizes, while the driver and the kubelet are killed again and again."""

from random import Random

import pytest
from tests.kubernetes.cluster import Cluster, Gpu
from tests.kubernetes.manifests import client, part, pod, template
from tests.kubernetes.nodes import Node
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.kubernetes_nodes, pytest.mark.soak]

_GIB = 1 << 30
_PODS = 24
_MOST_GIB = 40


def test_a_storm_of_pods_and_deaths_never_over_commits_and_lets_every_pod_run(
    cluster: Cluster, gpu: Gpu, node: Node
) -> None:
    dice = Random(6)
    sizes = {f"pod-{number}": dice.randint(1, _MOST_GIB) for number in range(_PODS)}
    for size in sorted(set(sizes.values())):
        cluster.apply(template(f"gib-{size}", part(f"{size}Gi"), selector=gpu.selector))
    cluster.apply(
        *(
            pod(
                gpu.node,
                name,
                client("client", "gpu", keep_seconds=dice.randint(1, 5)),
                templates={"gpu": f"gib-{size}"},
            )
            for name, size in sizes.items()
        )
    )

    ends = iter(range(0, _PODS, 6))
    next_end = next(ends, _PODS)
    while (ended := _ended(cluster)) < _PODS:
        assert cluster.consumed_bytes(gpu) <= gpu.memory_bytes
        if ended >= next_end:
            node.kill_the_driver()
            node.run("systemctl", "kill", "--signal=KILL", "kubelet")
            next_end = next(ends, _PODS)
        _wait_for_more_than(ended, cluster)

    assert set(cluster.phases().values()) == {"Succeeded"}
    for name, size in sizes.items():
        report = cluster.report(name)
        assert report["granted_bytes"] < report["total_bytes"] == size * _GIB
    until(lambda: cluster.consumed_bytes(gpu) == 0, lambda: "slices were never given back")


def _wait_for_more_than(ended: int, cluster: Cluster) -> None:
    until(lambda: _ended(cluster) > ended, cluster.phases)


def _ended(cluster: Cluster) -> int:
    phases = cluster.phases()
    failed = [name for name, phase in phases.items() if phase == "Failed"]
    assert not failed, "\n".join(cluster.story(name) + cluster.log(name) for name in failed)
    return sum(phase == "Succeeded" for phase in phases.values())
