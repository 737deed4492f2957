"""What suspended jobs hold of their GPU goes to the host and comes back, where the driver moves whole processes.

It is for jobs that do not oversubscribe: of those that do the driver moves pages by itself. Each victim's supervisor moves its
own job and writes down how far that is; whoever suspended it starts once all have left. It refuses to choose anybody.
"""
