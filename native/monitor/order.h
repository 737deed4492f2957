/* What a monitor is to do: words in a memory file, and descriptors that arrive with it.
 *
 * Up to MOST_HELD further descriptors may follow those below. The monitor keeps them open as long as it runs
 * and passes them to no other process: locks of GPUs, which must outlast a killed agent while a job runs. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* The descriptors of an order, in this sequence. Those that an order does not need are of /dev/null. */
enum order_fd {
    ORDER_WORDS,    /* memfd: words, each ended by a zero byte */
    ORDER_LOCK,     /* held by an open file description that has it as long as the monitor lives */
    ORDER_LISTENER, /* where clients attach */
    ORDER_CONTROL,  /* datagram socket of control words */
    ORDER_SPOOL,    /* directory of the start and end records */
    ORDER_GO,       /* the launcher's control pipe, read end */
    ORDER_REPORT,   /* the launcher's report pipe, write end */
    ORDER_STDOUT,   /* read end of the job's pipe, or the master side of its terminal */
    ORDER_STDERR,   /* read end of the job's pipe; the master side again for a terminal */
    ORDER_INPUT,    /* write end of the job's pipe; the master side again for a terminal */
    ORDER_JOB_STDIN,
    ORDER_JOB_STDOUT, /* the job's own ends */
    ORDER_JOB_STDERR,
    ORDER_DONE, /* closed once the end is recorded, or by the monitor's death */
    ORDER_FDS
};

enum { MOST_HELD = 64 };

struct order {
    int fds[ORDER_FDS];
    const char *job;           /* its id */
    const char *start;         /* number of the start, in digits */
    char *log;                 /* path */
    unsigned long cap;         /* most bytes of the log */
    unsigned long patience_ms; /* how long a client that reads nothing holds the job back */
    bool has_terminal, wants_stdin;
    char **launcher; /* argv, ended by NULL; NULL: the job runs elsewhere, only its streams are carried */
};

/* Parses the words of an order, each ended by a zero byte; it points into `text` and `words`, which has room
 * for one more than there are bytes. False if it is none. */
bool parse_order(struct order *order, char *text, size_t size, char **words);

/* Receives an order over a SOCK_SEQPACKET socket. False at its end, or if it is none. */
bool receive_order(int socket, struct order *order);
