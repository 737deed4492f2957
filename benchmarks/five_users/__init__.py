"""Three hundred jobs of five users on four simulated GPUs, from a full queue to their ends (`python -m benchmarks.five_users`, as root).

A server of its own serves five users of this machine, whom a private mount namespace adds to /etc/passwd; behind it lies a day of
history, which the agent's recorder wrote with a clock of that day. While the jobs go through the queue, `pgpu top` on two terminals of
tmux and the dashboard in Chromium are compared with `pgpu ps -o json` again and again: each shown job with its state, GPUs, slice and
use, the counts, and what is reserved of each GPU. At the end each job must have ended as its program was written to end. With
`--pictures docs/images` the pictures of the guides are taken meanwhile (a font with Korean letters is needed). Writes one JSON file into
benchmarks/results; 1 where anything differs.
"""
