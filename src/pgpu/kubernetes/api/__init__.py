"""The only way to a cluster's API server: a few typed calls, whose errors are pgpu's own.

It says no token and no certificate to anybody, and refuses to decide what should stand in an object.
"""

from pgpu.kubernetes.api.cluster import Cluster, DryRun, ObjectList, SliceList
from pgpu.kubernetes.api.credentials import connect
from pgpu.kubernetes.api.dynamic_client import DynamicClient, ObjectKind
from pgpu.kubernetes.api.object_watch import Change, Watch
from pgpu.kubernetes.api.resources import AllocatedDevice, ClaimUser, Configuration, Node, ObjectName, ResourceClaim
from pgpu.kubernetes.api.type_preparation import prepare_type

__all__ = [
    "AllocatedDevice",
    "Change",
    "ClaimUser",
    "Cluster",
    "Configuration",
    "DryRun",
    "DynamicClient",
    "Node",
    "ObjectKind",
    "ObjectList",
    "ObjectName",
    "ResourceClaim",
    "SliceList",
    "Watch",
    "connect",
    "prepare_type",
]
