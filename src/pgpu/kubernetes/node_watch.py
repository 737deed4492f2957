"""What a driver can tell of its node at one moment: GPUs, slices, and the containers that have them. It refuses to change anything."""

import threading
from collections.abc import Sequence

from pgpu.engine.claims import Claims, Offer
from pgpu.kubernetes.pods import PodResources
from pgpu.kubernetes.pods.shares import Share, shares
from pgpu.model import HeldClaim


class NodeWatch:
    """The node as engine and kubelet tell it. Safe for many threads."""

    def __init__(self, claims: Claims, pods: PodResources) -> None:
        """Ask nothing yet."""
        self._claims = claims
        self._pods = pods
        self._guard = threading.Lock()
        self._known: dict[str, HeldClaim] = {}

    def gpus(self) -> Sequence[Offer]:
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
        with self._guard:
            # What a claim holds never changes, so it is asked for only where there is a new one: that makes gone slices again.
            if not uses.keys() <= self._known.keys():
                self._known = {each.claim.uid: each for each in self._claims.held()}
            held = [each for uid, each in self._known.items() if uid in uses]
        return shares(pods, held, uses)
