"""How many replicas of a function there are, which go, and who gets the next call. Pure: values in, values out.

The gateway shows what there is and does what is decided. It refuses to know sockets, jobs' beginnings, the clock and chance:
the same view always gives the same steps.
"""

from pgpu.functions.scaling.arrival_history import ArrivalHistory, WarmWindow
from pgpu.functions.scaling.function_view import FunctionView, Phase, ReplicaView, VersionView
from pgpu.functions.scaling.parked_replicas import excess_parked
from pgpu.functions.scaling.replica_policy import plan_steps
from pgpu.functions.scaling.replica_value import ValueClock
from pgpu.functions.scaling.scaling_steps import Drain, Fail, MarkEvictable, Park, Start, Step, Stop, Wake
from pgpu.functions.scaling.traffic_split import TrafficSplit

__all__ = [
    "ArrivalHistory",
    "Drain",
    "Fail",
    "FunctionView",
    "MarkEvictable",
    "Park",
    "Phase",
    "ReplicaView",
    "Start",
    "Step",
    "Stop",
    "TrafficSplit",
    "ValueClock",
    "VersionView",
    "Wake",
    "WarmWindow",
    "excess_parked",
    "plan_steps",
]
