"""One process for all jobs that wait for one kind of GPUs, so that a queue of ten thousand costs one.

It is there while anything waits. What it decides it writes into the ledger in the same moment, and it knows nothing that
the ledger does not: whoever finds that it died starts another one. `calling` is how everybody reaches it, `life` what it
does, `zygote` how its supervisors come to be.
"""
