/* The clients that follow one job, each at its own place in the log; none can stop the job.
 *
 * A client that requested to lose nothing holds the job's output back while it lags far behind, but only as
 * long as it continues to read. */
#pragma once
#include <poll.h>
#include <stdbool.h>

#include "frames.h"
#include "log.h"
#include "streams.h"

enum { MOST_FOLLOWERS = 256, PART = 1 << 14 };

struct follower {
    int fd; /* -1: free */
    bool has_greeted, takes_output, end_is_sent;
    struct hello hello;
    uint64_t cursor;
    uint64_t progressed_at_ms;
    unsigned char in_header[FRAME_HEADER];
    unsigned in_header_length;
    uint32_t in_left; /* of the payload that comes in */
    unsigned hello_length;
    char hello_text[MOST_HELLO];
    unsigned char *out; /* what the socket did not take yet; mapped when that happens first */
    size_t out_begin, out_end;
};

struct followers {
    int count;
    int places; /* of `all` that were ever used: the others take no memory */
    int spare;  /* a descriptor given up to accept a client when the process has no other */
    struct job_log *log;
    struct streams *streams;
    uint64_t patience_ms;
    bool has_ended;
    struct follower all[MOST_FOLLOWERS]; /* last: without clients, no page of it is touched */
};

void followers_init(struct followers *followers, struct job_log *log, struct streams *streams,
                    uint64_t patience_ms);
void followers_accept(struct followers *followers, int listener);
int followers_poll(struct followers *followers, struct pollfd *polls, int *which);
void followers_ready(struct followers *followers, int which, short events);
void followers_output_grew(struct followers *followers);
bool followers_hold_back(struct followers *followers);
void followers_hang_up(struct followers *followers);
