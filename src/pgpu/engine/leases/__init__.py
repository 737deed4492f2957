"""Leases of running jobs: eviction of idle ones, resizes, recovery after crashes, GPU locks and MPS daemons."""
