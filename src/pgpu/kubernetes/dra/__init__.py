"""A ResourceClaim's allocation becomes a slice and a CDI file, and goes again. It refuses to choose GPUs: the scheduler did."""
