"""Looks at what pgpu needs of a cluster, and says how to mend what is missing; and why a pod waits.

It changes nothing: what it tries, it tries as dry runs. It refuses to guess: what the one who asks may not see is said to be unseen.
"""

from pgpu.kubernetes.doctor.examination import examine
from pgpu.kubernetes.doctor.waiting import explain

__all__ = ["examine", "explain"]
