"""The scaling policy of functions: how many replicas there are, which ones end, and which version gets the next call.

Pure: the gateway passes a view of the replicas and carries out the steps that it gets back. No clock, randomness or I/O, so
the same view always gives the same steps.
"""

from pgpu.functions.scaling.call_history import ArrivalHistory, WarmWindow
from pgpu.functions.scaling.function_view import (
    DrainReplica,
    FailVersion,
    FunctionView,
    MarkEvictable,
    ParkReplica,
    Phase,
    ReplicaView,
    StartReplica,
    Step,
    StopReplica,
    VersionView,
    WakeReplica,
)
from pgpu.functions.scaling.replica_policy import TrafficSplit, excess_parked, plan_steps
from pgpu.functions.scaling.replica_value import ValueClock

__all__ = [
    "ArrivalHistory",
    "DrainReplica",
    "FailVersion",
    "FunctionView",
    "MarkEvictable",
    "ParkReplica",
    "Phase",
    "ReplicaView",
    "StartReplica",
    "Step",
    "StopReplica",
    "TrafficSplit",
    "ValueClock",
    "VersionView",
    "WakeReplica",
    "WarmWindow",
    "excess_parked",
    "plan_steps",
]
