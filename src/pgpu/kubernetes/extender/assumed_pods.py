"""Pods that were just scored, and whose claims the cluster does not know to be allocated yet.

The scheduler goes on to the next pod before it has written what the last one got. Until that is heard of, the pod counts
where it was advised to go. It refuses to be sure: after a minute without news, a pod counts nowhere.
"""

from dataclasses import dataclass

from pgpu.kubernetes.extender.cluster_state import ClusterState
from pgpu.kubernetes.extender.scheduled_objects import ClaimKey, ClaimState, ConsumedGpu, PodState
from pgpu.scheduling.outlook import JobShape, NodeResources
from pgpu.scheduling.placement import PlacementPreference

GIVE_UP_SECONDS = 60.0
"""Writing an allocation takes some 10 ms; a pod that waits for a volume may take longer, and is scored wrongly then."""


@dataclass(frozen=True, slots=True)
class _Advice:
    pod: PodState
    until_seconds: float
    keys: tuple[ClaimKey, ...]


class AssumedPods:
    """Who was told what. Their share of GPUs stands in the stock under the pod's UID."""

    def __init__(self, stock: ClusterState) -> None:
        self._stock = stock
        self._by_uid: dict[str, _Advice] = {}
        self._uid_by_key: dict[ClaimKey, str] = {}

    def note(
        self, pod: PodState, shape: JobShape, wish: PlacementPreference, node: NodeResources, now_seconds: float
    ) -> None:
        """Count a pod where it was advised to go, on the GPUs that the scheduler will choose there: the first that fit."""
        self.forget(pod.uid)
        keys = tuple(ClaimKey(pod.namespace, use.name) for use in pod.claims if use.name is not None)
        self._by_uid[pod.uid] = _Advice(pod, now_seconds + GIVE_UP_SECONDS, keys)
        self._uid_by_key.update(dict.fromkeys(keys, pod.uid))
        self._stock.load(pod.uid, pod, node.name)
        fitting = [gpu.uuid for gpu in node.gpus if gpu.can_host(shape, wish.sharing_mode)][: shape.gpu_count]
        self._stock.take(pod.uid, tuple(self._taken(shape, node.name, gpu) for gpu in fitting))

    def _taken(self, shape: JobShape, node: str, gpu: str) -> ConsumedGpu:
        return ConsumedGpu(self._stock.pool_of(node, gpu) or "", gpu, shape.memory_bytes, shape.compute_milli)

    def heard_of(self, claim: ClaimState) -> None:
        """Note that the cluster knows what a claim has: whoever it is for is counted there."""
        if not claim.is_allocated:
            return
        uid = self._uid_by_key.get(claim.key)
        for each in (claim.user_uids & self._by_uid.keys()) | ({uid} if uid is not None else set()):
            self._settle(each)

    def _settle(self, uid: str) -> None:
        """Count its GPUs no more; what it takes of the node stays until the pod itself is heard of."""
        self._stock.take(uid, ())

    def forget(self, uid: str) -> None:
        """Count a pod no more than the cluster does."""
        advice = self._by_uid.pop(uid, None)
        if advice is None:
            return
        for key in advice.keys:
            self._uid_by_key.pop(key, None)
        self._stock.take(uid, ())
        known = self._stock.pods.get(uid)
        node = None if known is None else known.node
        self._stock.load(uid, None if node is None else known, node or "")

    def forget_old(self, now_seconds: float) -> None:
        """Give up those of whom nothing was heard."""
        while self._by_uid:
            uid, advice = next(iter(self._by_uid.items()))
            if advice.until_seconds > now_seconds:
                return
            self.forget(uid)
