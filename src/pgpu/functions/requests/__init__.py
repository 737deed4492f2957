"""Requests from admission to answer, the same for a replica and for a gateway's router: state, deadlines, refusals, metrics."""
