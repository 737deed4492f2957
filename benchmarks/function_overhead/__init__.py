"""What serving a function costs when the function costs nothing (`python -m benchmarks.function_overhead`)."""
