"""What is watched once a second beside running jobs: processes, GPU time, MPS trials and memory outside of leases."""
