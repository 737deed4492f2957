"""What a driver can tell of its node at one moment: GPUs, slices, and the containers that have them. It refuses to change anything."""

from collections.abc import Sequence

from pgpu.engine.claims import ClaimableGpu, Claims
from pgpu.kubernetes.node_pods import PodResources
from pgpu.kubernetes.pod_shares import Share, shares


class NodeView:
    """The node as engine and kubelet tell it. Safe for many threads."""

    def __init__(self, claims: Claims, pods: PodResources) -> None:
        """Ask nothing yet."""
        self._claims = claims
        self._pods = pods

    def gpus(self) -> Sequence[ClaimableGpu]:
        """Return what claims may take of each GPU, and what they hold.

        Raises:
            NodeError: They cannot be read.
        """
        return self._claims.gpus()

    def shares(self) -> Sequence[Share]:
        """Return every slice with the container that has it.

        Raises:
            KubeletAwayError: Nobody knows which container has which.
            NodeError: The ledger cannot be used.
        """
        pods = self._pods.pods()
        uses = self._claims.uses()
        records = self._claims.records()
        return shares(pods, [records[uid] for uid in records if uid in uses], uses)
