"""Pure advice from profiles: which sharing mode, how slow each job gets, what size is right.

It takes values and returns values: no clock, file, process or randomness, and it refuses to decide; the engine does.
"""
