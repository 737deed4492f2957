"""Turns on GPUs with jobs that hold more memory than fits: `arbiter` runs them, `turn_state` is their file."""
