"""The only way to a cluster's API server: a few typed calls, whose errors are pgpu's own.

It says no token and no certificate to anybody, and refuses to decide what should stand in an object.
"""

from pgpu.kubernetes.api.cluster import Cluster, DryRun, Listed, SliceList
from pgpu.kubernetes.api.connecting import connected
from pgpu.kubernetes.api.objects import Kind, Objects
from pgpu.kubernetes.api.prepared import prepare
from pgpu.kubernetes.api.values import (
    AllocatedDevice,
    ClaimUser,
    Configuration,
    Node,
    ObjectName,
    ResourceClaim,
)
from pgpu.kubernetes.api.watching import Change, Watch

__all__ = [
    "AllocatedDevice",
    "Change",
    "ClaimUser",
    "Cluster",
    "Configuration",
    "DryRun",
    "Kind",
    "Listed",
    "Node",
    "ObjectName",
    "Objects",
    "ResourceClaim",
    "SliceList",
    "Watch",
    "connected",
    "prepare",
]
