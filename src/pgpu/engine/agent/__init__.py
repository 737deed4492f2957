"""One process for each queue: it admits jobs, supervises them until they have ended, and watches their GPUs.

It lives while a job of its queue waits or runs. Every decision is in the ledger before it is acted on, so an agent that was
killed costs no job anything: its guard starts another, which takes over from the ledger, the records of the native monitors
and the files of the slices. `agents` reaches or starts an agent, `agent` is its main loop, `attendants` the jobs that it supervises.
"""
