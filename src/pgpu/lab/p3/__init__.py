"""P3 in three independent parts: the cost of containers, the wall of memory, and MPS against time-slicing."""
