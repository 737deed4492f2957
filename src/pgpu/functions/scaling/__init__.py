"""How many replicas of a function there are, which go, and who gets the next call. Pure: values in, values out.

The gateway shows what there is and does what is decided. It refuses to know sockets, jobs' beginnings, the clock and chance:
the same view always gives the same steps.
"""

from pgpu.functions.scaling.arrivals import Arrivals, Warmth
from pgpu.functions.scaling.deciding import decide
from pgpu.functions.scaling.parked import too_many
from pgpu.functions.scaling.split import Split
from pgpu.functions.scaling.steps import Drain, Fail, Offer, Park, Start, Step, Stop, Wake
from pgpu.functions.scaling.value import Clock
from pgpu.functions.scaling.views import FunctionView, Phase, ReplicaView, VersionView

__all__ = [
    "Arrivals",
    "Clock",
    "Drain",
    "Fail",
    "FunctionView",
    "Offer",
    "Park",
    "Phase",
    "ReplicaView",
    "Split",
    "Start",
    "Step",
    "Stop",
    "VersionView",
    "Wake",
    "Warmth",
    "decide",
    "too_many",
]
