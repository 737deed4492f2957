"""`pgpu function dev`: one replica of a function on this machine, which restarts when its code changes.

The replica is the same program as on a server. This room watches files, starts a new replica beside the old one and moves
callers to it once it is ready. It has no scaling and no authentication.
"""
