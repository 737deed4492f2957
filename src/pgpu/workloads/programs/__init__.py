"""Stand-ins for the benchmark programs of P3 (Rodinia, PolyBench), and antagonists that use up one resource.

Written from the definitions of the problems and deliberately not tuned: each kernel is the plain one for its problem, since the
effect of a cache or a neighbour on a plain kernel is what they measure.
"""
