"""Frozen values that every room shares: what a GPU, a request, a slice, a lease and a job are.

Nothing here acts: no clock, file, socket, randomness or log. Units stand in the names.
"""

from pgpu.model.account import Account
from pgpu.model.bandwidths import Bandwidths
from pgpu.model.claim import Claim, HeldClaim
from pgpu.model.delivery import Delivery
from pgpu.model.event import Event
from pgpu.model.function import (
    COLD_START_PHASES,
    ColdStart,
    Deployment,
    Function,
    FunctionToken,
    Replica,
    ReplicaState,
    Share,
    Version,
    VersionState,
    with_canary,
)
from pgpu.model.gpu import Gpu, GpuMemory, GpuProcess
from pgpu.model.holder import ClaimHolder, ContainerHolder, Holder, ProcessHolder
from pgpu.model.job import ANONYMOUS, SEALED_HOST_MEMORY_BYTES, Job, JobSpec, JobState, Mount, Place
from pgpu.model.lease import Lease, Slice
from pgpu.model.outsider import Outsider
from pgpu.model.owner import DOCKER_UID, KUBERNETES_UID, OWNER_NAMES, OWNER_UIDS
from pgpu.model.profile import (
    Antagonist,
    Contest,
    CopyUse,
    Demand,
    Evidence,
    KernelUse,
    Profile,
    Resource,
    Sensitivity,
)
from pgpu.model.request import Request
from pgpu.model.resize import Resize
from pgpu.model.run import Run
from pgpu.model.sharing import SharingMode, SharingWish
from pgpu.model.submission import Array, Submission

__all__ = [
    "ANONYMOUS",
    "COLD_START_PHASES",
    "DOCKER_UID",
    "KUBERNETES_UID",
    "OWNER_NAMES",
    "OWNER_UIDS",
    "SEALED_HOST_MEMORY_BYTES",
    "Account",
    "Antagonist",
    "Array",
    "Bandwidths",
    "Claim",
    "ClaimHolder",
    "ColdStart",
    "ContainerHolder",
    "Contest",
    "CopyUse",
    "Delivery",
    "Demand",
    "Deployment",
    "Event",
    "Evidence",
    "Function",
    "FunctionToken",
    "Gpu",
    "GpuMemory",
    "GpuProcess",
    "HeldClaim",
    "Holder",
    "Job",
    "JobSpec",
    "JobState",
    "KernelUse",
    "Lease",
    "Mount",
    "Outsider",
    "Place",
    "ProcessHolder",
    "Profile",
    "Replica",
    "ReplicaState",
    "Request",
    "Resize",
    "Resource",
    "Run",
    "Sensitivity",
    "Share",
    "SharingMode",
    "SharingWish",
    "Slice",
    "Submission",
    "Version",
    "VersionState",
    "with_canary",
]
