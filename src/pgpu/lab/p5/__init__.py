"""P5: a function that loads its model in each call against one that loads it once, with a detector of real size."""
