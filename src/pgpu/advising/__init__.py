"""Pure advice from profiles: which sharing mode jobs should use together, and how slow each of them gets.

Functions of values only: no clock, file, process or randomness. The engine decides.
"""
