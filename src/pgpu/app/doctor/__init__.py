"""`pgpu doctor`: checks of what pgpu needs of this machine, each with a remedy. Trials use a temporary state directory."""
