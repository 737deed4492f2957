"""The view of `pgpu top`: a full screen that is read anew each second.

A thread reads GPUs and jobs through the client (`picture`); pure functions lay a picture out in lines of coloured spans
(`gpu_panel`, `job_table`, `drawing`); the application (`app`) compares each line with what the terminal shows and sends the spans that
differ. Only `app` imports Textual. Names, commands and output of jobs reach the terminal as plain text: control characters are
escaped, and no markup is interpreted.
"""
