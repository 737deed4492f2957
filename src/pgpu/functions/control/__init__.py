"""The control of replicas: the policy's steps become requests to the control plane. Calls are the routers' concern."""
