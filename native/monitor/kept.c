#include "kept.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_JOBS = 1024, MOST_EACH = 2, MOST_ID = 32, RESERVED = 64 /* for everything else */ };

struct kept {
    char job[MOST_ID + 1]; /* empty: free */
    int fds[MOST_EACH];
    int count;
};

static struct kept
    *all; /* mapped by a guard alone: static data of this size would cost each monitor a page */
static int most_jobs;

union descriptors {
    struct cmsghdr header;
    char space[CMSG_SPACE(MOST_EACH * sizeof(int))];
};

void kept_init(void) {
    struct rlimit limit = {RESERVED, RESERVED};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    const rlim_t places = limit.rlim_cur > RESERVED ? (limit.rlim_cur - RESERVED) / MOST_EACH : 0;
    most_jobs = places < MOST_JOBS ? (int)places : MOST_JOBS;
    all = mmap(NULL, MOST_JOBS * sizeof *all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) most_jobs = 0;
}

static void close_all(const int *fds, int count) {
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

/* The place of a job, or of no job if the name is empty; NULL if there is none. */
static struct kept *find(const char *job) {
    for (int i = 0; i < most_jobs; i++)
        if (strcmp(all[i].job, job) == 0) return &all[i];
    return NULL;
}

static void drop(const char *job) {
    struct kept *kept = find(job);
    if (kept == NULL) return;
    close_all(kept->fds, kept->count);
    *kept = (struct kept){0};
}

/* Takes the descriptors over; without a free place they are closed. */
static void keep(const char *job, const int *fds, int count) {
    drop(job);
    struct kept *kept = find("");
    if (kept == NULL) {
        close_all(fds, count);
        return;
    }
    strcpy(kept->job, job);
    memcpy(kept->fds, fds, (size_t)count * sizeof *fds);
    kept->count = count;
}

/* Sends what is kept, which may be nothing, to a socket of the agent alone. */
static void give(const char *job, int to) {
    const struct kept *kept = find(job);
    union descriptors control = {0};
    struct iovec part = {(void *)job, strlen(job)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (kept != NULL) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE((size_t)kept->count * sizeof(int));
        control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN((size_t)kept->count * sizeof(int)),
                                          .cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), kept->fds, (size_t)kept->count * sizeof(int));
    }
    sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Takes over the descriptors of a request unless it is none. */
static void execute(const char *request, const int *fds, int count) {
    const char *job = strchr(request, ' ');
    const size_t verb = job != NULL ? (size_t)(job - request) : 0;
    const size_t length = job != NULL ? strlen(++job) : 0;
    const bool is_request = verb == 4 && length > 0 && length <= MOST_ID;
    if (is_request && strncmp(request, "keep", verb) == 0 && count > 0) {
        keep(job, fds, count);
        return;
    }
    if (is_request && strncmp(request, "drop", verb) == 0) drop(job);
    if (is_request && strncmp(request, "take", verb) == 0 && count == 1) give(job, fds[0]);
    close_all(fds, count);
}

int kept_serve(int socket) {
    char request[KEPT_MESSAGE + 1];
    union descriptors control;
    struct iovec part = {request, KEPT_MESSAGE};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int fds[MOST_EACH], count = 0;
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(header), (size_t)count * sizeof(int));
    }
    request[got] = '\0';
    if ((message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0)
        close_all(fds, count); /* the rest of the descriptors is closed already */
    else if (got > 0)
        execute(request, fds, count);
    else
        close_all(fds, count);
    return got > 0 || count > 0 ? 1 : -1;
}
