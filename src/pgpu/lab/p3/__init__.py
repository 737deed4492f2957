"""P3, reproduced in three parts: what containers cost, the wall of memory, and whether to use MPS.

They refuse to know each other: any of them runs alone.
"""
