"""Real CUDA programs over the public driver API, for the demo, the experiments and the benchmarks.

They run unchanged on NVIDIA's driver and on the simulated one. They refuse to know pgpu: no import of any other room.
"""
