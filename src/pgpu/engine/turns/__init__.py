"""Turns on GPUs whose jobs hold more memory than fits: `arbiter` runs them, `turn_state` is their file."""
