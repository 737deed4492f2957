#include "followers.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

#define MOST_LAG ((uint64_t)4 << 20) /* less than the log keeps in memory on a full disk */
enum { OUT = PART + FRAME_HEADER };

void followers_init(struct followers *followers, struct job_log *log, struct streams *streams,
                    uint64_t patience_ms) {
    followers->patience_ms = patience_ms;
    followers->log = log;
    followers->streams = streams;
    followers->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void drop(struct followers *followers, struct follower *follower) {
    close(follower->fd);
    follower->fd = -1;
    followers->count--;
    if (follower->out != NULL) munmap(follower->out, OUT);
    if (follower->has_greeted && follower->hello.owns_stdin) streams_end_input(followers->streams);
}

void followers_accept(struct followers *followers, int listener) {
    const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        /* A client that is not accepted keeps the listener readable, and the loop running. */
        close(followers->spare);
        close(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
        followers->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0) return;
    int place = 0;
    while (place < followers->places && followers->all[place].fd >= 0)
        place++;
    if (place == MOST_FOLLOWERS) {
        close(fd);
        return;
    }
    if (place == followers->places) followers->places++;
    followers->all[place] = (struct follower){.fd = fd, .progressed_at_ms = now_ms()};
    followers->count++;
}

/* Sends what waits and then `length` new bytes; the rest is kept. False if the client disconnected. */
static bool send_or_keep(struct follower *follower, const void *data, size_t length) {
    size_t done = 0;
    while (done < length) {
        const ssize_t sent =
            send(follower->fd, (const char *)data + done, length - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN) return false;
        if (sent < 0) break;
        done += (size_t)sent;
        follower->progressed_at_ms = now_ms();
    }
    if (done == length) return true;
    if (follower->out == NULL) {
        void *out = mmap(NULL, OUT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (out == MAP_FAILED) return false;
        follower->out = out;
    }
    memcpy(follower->out, (const char *)data + done, length - done);
    follower->out_begin = 0;
    follower->out_end = length - done;
    return true;
}

static bool has_unsent(const struct follower *follower) {
    return follower->out_begin < follower->out_end;
}

static bool send_kept(struct follower *follower) {
    while (has_unsent(follower)) {
        const ssize_t sent = send(follower->fd, follower->out + follower->out_begin,
                                  follower->out_end - follower->out_begin, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return errno == EAGAIN;
        follower->out_begin += (size_t)sent;
        follower->progressed_at_ms = now_ms();
    }
    return true;
}

/* The next frame for a client, in `frame`; 0 if there is nothing. */
static size_t next_frame(struct followers *followers, struct follower *follower, unsigned char *frame) {
    const struct job_log *log = followers->log;
    const uint64_t oldest = log_oldest_from(log, follower->cursor);
    if (oldest > follower->cursor) {
        const uint64_t offset = htobe64(oldest);
        put_frame_header(frame, GAP, sizeof offset);
        memcpy(frame + FRAME_HEADER, &offset, sizeof offset);
        follower->cursor = oldest;
        return FRAME_HEADER + sizeof offset;
    }
    const size_t got =
        follower->cursor < log->end ? log_read(log, follower->cursor, frame + FRAME_HEADER, PART) : 0;
    if (got > 0) {
        put_frame_header(frame, OUTPUT, (uint32_t)got);
        follower->cursor += got;
        return FRAME_HEADER + got;
    }
    if (!followers->has_ended || follower->end_is_sent) return 0;
    put_frame_header(frame, END, 0);
    follower->end_is_sent = true;
    return FRAME_HEADER;
}

static void pump(struct followers *followers, struct follower *follower) {
    static unsigned char frame[OUT];
    if (!follower->takes_output) return;
    bool is_there = send_kept(follower);
    while (is_there && !has_unsent(follower)) {
        const size_t length = next_frame(followers, follower, frame);
        if (length == 0) break;
        is_there = send_or_keep(follower, frame, length);
    }
    if (!has_unsent(follower)) follower->progressed_at_ms = now_ms();
    if (!is_there) {
        /* What it sent before it disconnected can still be received, up to the end of the stream. */
        shutdown(follower->fd, SHUT_RDWR);
        follower->takes_output = false;
        follower->out_begin = follower->out_end;
    } else if (follower->end_is_sent && !has_unsent(follower)) {
        drop(followers, follower);
    }
}

/* Takes what a client sent; false if it is no frame of a client. */
static bool take_in(struct followers *followers, struct follower *follower, const char *data, size_t length) {
    while (length > 0) {
        if (follower->in_header_length < FRAME_HEADER) {
            follower->in_header[follower->in_header_length++] = (unsigned char)*data++;
            length--;
            if (follower->in_header_length < FRAME_HEADER) continue;
            follower->in_left = frame_length(follower->in_header);
            follower->hello_length = 0;
            if (follower->in_left > MOST_FRAME) return false;
        }
        const int kind = follower->in_header[0];
        const size_t part = length < follower->in_left ? length : follower->in_left;
        if (kind == STDIN_DATA) {
            streams_give_input(followers->streams, data, part);
        } else if (kind == HELLO && !follower->has_greeted && follower->hello_length + part <= MOST_HELLO) {
            memcpy(follower->hello_text + follower->hello_length, data, part);
            follower->hello_length += (unsigned)part;
        } else if (kind != STDIN_END || part > 0) {
            return false;
        }
        data += part;
        length -= part;
        follower->in_left -= (uint32_t)part;
        if (follower->in_left > 0) continue;
        follower->in_header_length = 0;
        if (kind == STDIN_END) streams_end_input(followers->streams);
        if (kind != HELLO) continue;
        if (!parse_hello(follower->hello_text, follower->hello_length, &follower->hello)) return false;
        follower->has_greeted = follower->takes_output = true;
        follower->cursor = follower->hello.offset;
    }
    return true;
}

static void receive(struct followers *followers, struct follower *follower) {
    static char data[PART];
    const size_t room = streams_input_room(followers->streams);
    if (room == 0) return; /* another client filled it in this round */
    const ssize_t got = recv(follower->fd, data, room < sizeof data ? room : sizeof data, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0 || !take_in(followers, follower, data, (size_t)got))
        drop(followers, follower);
    else
        pump(followers, follower);
}

/* Appends what to poll for; `which` gets the follower of each. Returns the number of entries. */
int followers_poll(struct followers *followers, struct pollfd *polls, int *which) {
    int count = 0;
    const bool takes_input = streams_input_room(followers->streams) > 0;
    for (int i = 0; i < followers->places; i++) {
        const struct follower *follower = &followers->all[i];
        if (follower->fd < 0) continue;
        const short in = takes_input ? POLLIN : 0;
        polls[count] = (struct pollfd){follower->fd, (short)(in | (has_unsent(follower) ? POLLOUT : 0)), 0};
        which[count++] = i;
    }
    return count;
}

void followers_ready(struct followers *followers, int which, short events) {
    struct follower *follower = &followers->all[which];
    if (follower->fd >= 0 && (events & POLLOUT)) pump(followers, follower);
    if (follower->fd < 0) return;
    if (events & POLLIN)
        receive(followers, follower);
    else if (events & (POLLERR | POLLHUP))
        drop(followers, follower);
}

void followers_output_grew(struct followers *followers) {
    for (int i = 0; i < followers->places; i++)
        if (followers->all[i].fd >= 0) pump(followers, &followers->all[i]);
}

bool followers_hold_back(struct followers *followers) {
    const uint64_t now = now_ms();
    for (int i = 0; i < followers->places; i++) {
        const struct follower *follower = &followers->all[i];
        if (follower->fd < 0 || !follower->takes_output || !follower->hello.holds_back) continue;
        if (followers->log->end <= follower->cursor) continue;
        if (followers->log->end - follower->cursor > MOST_LAG &&
            now - follower->progressed_at_ms < followers->patience_ms)
            return true;
    }
    return false;
}

void followers_hang_up(struct followers *followers) {
    for (int i = 0; i < followers->places; i++)
        if (followers->all[i].fd >= 0) drop(followers, &followers->all[i]);
}
