"""The kubelet's side: sockets that it finds, and the services that it calls there. It refuses to know what a slice is."""
