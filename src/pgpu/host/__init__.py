"""Facilities of the Linux host that several rooms share: the identity of processes and locks on files."""
