"""How much of a cluster's and of a machine's GPUs placement can fill, beside the placers that others use."""
