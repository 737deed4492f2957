"""Pure decisions: which request starts now, and on which GPUs.

Functions of values only: no clock, file, socket, randomness or log.
"""
