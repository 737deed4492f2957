/* The monitor's ends of a job's standard streams: two pipes or a terminal's master side, and the input that
 * clients sent and the job has not read yet. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "log.h"

enum { STDOUT_STREAM = 1, STDERR_STREAM = 2, MOST_STDIN = 1 << 20 };

struct streams {
    int outputs[2]; /* stdout and stderr, or the master side and -1; -1: ended. Non-blocking */
    bool has_terminal;
    bool is_hung_up; /* no process has the terminal open now */
    bool wants_stdin;
    int stdin_end; /* where input is written, the master side of a terminal; -1: there is none or it ended */
    char *input;   /* MOST_STDIN bytes, mapped at the first input */
    size_t input_length;
    bool input_ends;
    bool is_in_line; /* the input so far does not end with a whole line */
};

void streams_set_window(const struct streams *streams, unsigned short columns, unsigned short rows);

/* Moves one piece of output into the log. Returns its bytes; 0 if there is none now. */
size_t streams_read(struct streams *streams, int which, struct job_log *log);
size_t streams_input_room(const struct streams *streams);
void streams_give_input(struct streams *streams, const char *data, size_t length);
void streams_end_input(struct streams *streams);
void streams_push_input(struct streams *streams);
