"""Looks at what pgpu needs of a cluster, and says how to mend what is missing; and why a pod waits.

It changes nothing: what it tries, it tries as dry runs. It refuses to guess: what the one who asks may not see is said to be unseen.
"""

from pgpu.kubernetes.doctor.cluster_checks import check_cluster
from pgpu.kubernetes.doctor.pending_pod import explain_pending_pod

__all__ = ["check_cluster", "explain_pending_pod"]
