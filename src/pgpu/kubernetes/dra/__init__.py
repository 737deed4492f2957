"""The DRA driver of a node: the kubelet's prepare and unprepare calls become slices of the engine and CDI files."""
