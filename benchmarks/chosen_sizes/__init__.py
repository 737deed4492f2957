"""Sizes that pgpu chooses, in simulated time: families of jobs, their arrivals, and the machine on which they run."""
