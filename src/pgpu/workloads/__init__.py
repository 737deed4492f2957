"""Real CUDA programs over the public driver API, for the demo, the experiments and the benchmarks.

They run unchanged on NVIDIA's driver and on the simulated one, and import no other room of pgpu: images for tests hold this
package alone. The driver API comes from cuda-bindings, in the extra `workloads`.
"""
