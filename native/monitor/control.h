/* Control words: the datagrams by which an agent directs a monitor. */
#pragma once
#include <stddef.h>

enum control_kind {
    NO_CONTROL,
    CONTROL_SIGNAL, /* "signal N": to the job's main process */
    CONTROL_WINDOW, /* "window COLUMNS ROWS": the size of the terminal */
    CONTROL_END,    /* "end": of a job that runs elsewhere */
    CONTROL_FINISH, /* "finish": the job is final, so clients get the end */
    CONTROL_QUIT    /* "quit": at once */
};

struct control {
    enum control_kind kind;
    unsigned long numbers[2]; /* the signal, 1 to 64; or columns and rows, up to 65535 */
};

enum { MOST_CONTROL = 64 };

/* Parses a datagram of up to MOST_CONTROL bytes; NO_CONTROL if it is no word. */
struct control parse_control(const char *text, size_t length);
