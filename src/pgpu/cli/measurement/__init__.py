"""The runs behind `pgpu profile` and `pgpu calibrate`: each is a job of its own, submitted through a client."""
