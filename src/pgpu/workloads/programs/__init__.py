"""Stand-ins for the benchmark programs of P3 (Rodinia, PolyBench), and antagonists that take one resource.

Written from the definitions of the problems. They refuse to be tuned: each kernel is the plain one that its problem
suggests, since what a cache or a neighbour does to a plain kernel is what they are for.
"""
