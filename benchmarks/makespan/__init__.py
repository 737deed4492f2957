"""How soon a batch of jobs ends, beside the optimum that a constraint solver finds."""
