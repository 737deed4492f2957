"""Pure advice from earlier runs and profiles: how much memory a job should reserve, and how jobs should share a GPU.

Functions of values only: no clock, file, process or randomness. The engine decides.
"""
