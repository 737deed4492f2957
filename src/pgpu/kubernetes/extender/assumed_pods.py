"""Pods that were scored and whose allocation is not visible in the cluster yet.

The scheduler goes on to the next pod before it has written the allocation of the last one. Until the allocation is seen, the pod counts
on the best node, as in the scheduler's own cache; after a minute without news it no longer counts.
"""

from dataclasses import dataclass

from pgpu.kubernetes.extender.cluster_state import ClusterState
from pgpu.kubernetes.extender.pod_demand import PodDemand
from pgpu.kubernetes.extender.scheduled_objects import ClaimKey, ClaimState, ConsumedGpu, PodState
from pgpu.scheduling.outlook import NodeResources

GIVE_UP_SECONDS = 60.0
"""Writing an allocation takes some 10 ms; a pod that waits for a volume may take longer, and is scored wrongly then."""


@dataclass(frozen=True, slots=True)
class _Assumption:
    until_seconds: float
    keys: tuple[ClaimKey, ...]


class AssumedPods:
    """The assumed pods, in order of age. What they take is in the state under the pod's UID. Not thread-safe."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._by_uid: dict[str, _Assumption] = {}
        self._uid_by_key: dict[ClaimKey, str] = {}

    def assume(self, pod: PodState, demand: PodDemand, node: NodeResources, now_seconds: float) -> None:
        """Count a pod on a node, on the GPUs that the scheduler will choose there: the first that fit."""
        self.forget(pod.uid)
        keys = tuple(ClaimKey(pod.namespace, use.name) for use in pod.claims if use.name is not None)
        self._by_uid[pod.uid] = _Assumption(now_seconds + GIVE_UP_SECONDS, keys)
        self._uid_by_key.update(dict.fromkeys(keys, pod.uid))
        self._state.load(pod.uid, pod, node.name)
        shape, mode = demand.shape, demand.preference.sharing_mode
        fitting = [gpu.uuid for gpu in node.gpus if gpu.can_host(shape, mode)][: shape.gpu_count]
        taken = (
            ConsumedGpu(self._state.pool_of(node.name, gpu) or "", gpu, shape.memory_bytes, shape.compute_milli)
            for gpu in fitting
        )
        self._state.take(pod.uid, tuple(taken))

    def see_claim(self, claim: ClaimState) -> None:
        """End the assumed GPUs of the pods of an allocated claim; what they take of the node stays until the pod is seen."""
        if claim.is_allocated:
            uids = claim.user_uids & self._by_uid.keys()
            if (uid := self._uid_by_key.get(claim.key)) is not None:
                uids |= {uid}
            for each in uids:
                self._state.take(each, ())

    def forget(self, uid: str) -> None:
        """Count a pod only as the cluster reports it."""
        assumption = self._by_uid.pop(uid, None)
        if assumption is None:
            return
        for key in assumption.keys:
            self._uid_by_key.pop(key, None)
        self._state.take(uid, ())
        known = self._state.pods.get(uid)
        node = None if known is None else known.node
        self._state.load(uid, None if node is None else known, node or "")

    def forget_old(self, now_seconds: float) -> None:
        """Forget pods of which nothing was seen in time."""
        while self._by_uid:
            uid, assumption = next(iter(self._by_uid.items()))
            if assumption.until_seconds > now_seconds:
                return
            self.forget(uid)
