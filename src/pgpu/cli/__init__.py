"""The command line, one module for each group of verbs: the only room that prints and has exit codes."""
