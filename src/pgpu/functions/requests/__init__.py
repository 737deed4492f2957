"""Requests of a replica or a gateway while they wait and run: their state, their counts, and how many a worker has ahead."""
