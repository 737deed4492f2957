"""Functions on a cluster: applied, looked at, and removed.

What is applied is made elsewhere and is a value. This room asks a cluster what it has, lets the server try everything
before it stores anything, and removes what is not used any more. It refuses to take a field or an object from somebody
else unless it is told to, and to wait for a platform that scales, starts and routes by itself.
"""

from pgpu.kubernetes.applying.applying import Done, Outcome, Wish, deploy
from pgpu.kubernetes.applying.removing import undeploy
from pgpu.kubernetes.applying.standing import Standing, standings

__all__ = ["Done", "Outcome", "Standing", "Wish", "deploy", "standings", "undeploy"]
