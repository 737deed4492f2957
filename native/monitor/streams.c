#include "streams.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <termios.h>
#include <unistd.h>

enum { CHUNK = 1 << 16 };

void streams_set_window(const struct streams *streams, unsigned short columns, unsigned short rows) {
    const struct winsize size = {.ws_row = rows, .ws_col = columns};
    if (streams->has_terminal && streams->outputs[0] >= 0) ioctl(streams->outputs[0], TIOCSWINSZ, &size);
}

static void end_output(struct streams *streams, int which) {
    /* A terminal's master side stays open: to close it would send SIGHUP to a job that closed its terminal
     * first and ends only then. */
    if (streams->has_terminal) {
        streams->is_hung_up = true;
        return;
    }
    close(streams->outputs[which]);
    streams->outputs[which] = -1;
}

size_t streams_read(struct streams *streams, int which, struct job_log *log) {
    const int fd = streams->outputs[which];
    const int stream = which == 0 ? STDOUT_STREAM : STDERR_STREAM;
    if (fd < 0) return 0;
    const size_t taken = streams->has_terminal ? 0 : log_take(log, stream, fd, CHUNK);
    if (taken > 0) return taken;
    static char piece[CHUNK];
    ssize_t got;
    do {
        got = read(fd, piece, sizeof piece);
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
        streams->is_hung_up = false;
        log_append(log, stream, piece, (size_t)got);
        return (size_t)got;
    }
    if (got < 0 && errno == EAGAIN)
        streams->is_hung_up = false;
    else
        end_output(streams, which); /* a terminal reports EIO when its last user is gone */
    return 0;
}

size_t streams_input_room(const struct streams *streams) {
    return MOST_STDIN - streams->input_length;
}

void streams_give_input(struct streams *streams, const char *data, size_t length) {
    if (!streams->wants_stdin || streams->input_ends || length > streams_input_room(streams)) return;
    if (streams->input == NULL) {
        void *buffer = mmap(NULL, MOST_STDIN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (buffer == MAP_FAILED) return;
        streams->input = buffer;
    }
    memcpy(streams->input + streams->input_length, data, length);
    streams->input_length += length;
    streams_push_input(streams);
}

void streams_end_input(struct streams *streams) {
    streams->input_ends = true;
    streams_push_input(streams);
}

static void close_input(struct streams *streams) {
    if (streams->stdin_end < 0) return;
    if (streams->has_terminal) {
        /* The line discipline reads this character as the end of input, or of an unfinished line: termios(3),
         * VEOF. */
        for (int left = streams->is_in_line ? 2 : 1; left > 0; left--) {
            if (write(streams->stdin_end, "\x04", 1) != 1 && errno == EAGAIN) return;
            streams->is_in_line = false;
        }
    } else {
        close(streams->stdin_end);
    }
    streams->stdin_end = -1;
}

void streams_push_input(struct streams *streams) {
    size_t done = 0;
    while (done < streams->input_length && streams->stdin_end >= 0) {
        const ssize_t put = write(streams->stdin_end, streams->input + done, streams->input_length - done);
        if (put > 0) {
            done += (size_t)put;
            streams->is_in_line = strchr("\r\n", streams->input[done - 1]) == NULL;
        } else if (put < 0 && errno == EINTR) {
            continue;
        } else {
            if (errno == EAGAIN) break;
            done = streams->input_length; /* the job does not read any more */
            streams->input_ends = true;
        }
    }
    if (streams->stdin_end < 0) done = streams->input_length;
    streams->input_length -= done;
    if (done > 0 && streams->input_length > 0)
        memmove(streams->input, streams->input + done, streams->input_length);
    if (streams->input_ends && streams->input_length == 0) close_input(streams);
}
