"""The dashboard: one page that shows GPUs, their last week, queue, jobs, functions and waste; it changes nothing.

`picture` reads the state and splits it into a public part and the part of each owner, `feed` sends the changes to all viewers as
server-sent events, `sign_in` decides which browser is which user, `routes` answers, and `page` holds what the browser loads: plain ES
modules and one style sheet, sent as they are. `pgpu serve` answers it to users with a token, `pgpu dashboard` to one user on
127.0.0.1.
"""
