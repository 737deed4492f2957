"""From words of the command line or of a job file to submitted jobs, and the wait for their end."""
