"""How many GPUs a cluster's pods use with and without `pgpu kubernetes score`, and what asking it costs."""
