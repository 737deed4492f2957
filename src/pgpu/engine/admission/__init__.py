"""Rounds of admission: reads the ledger and the GPUs, applies `pgpu.scheduling`, and writes the result."""
