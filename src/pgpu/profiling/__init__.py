"""Profiles of jobs: measurements of a job's GPU use from its trace, its sensitivity to others, and reports of them."""
