/* One input for one of the readers of what other processes write: its first byte chooses which. The monitor's
 * are here.
 *
 * `make fuzz` links it with libFuzzer; the tests link it with mutate.c, which needs no clang. Either build
 * has AddressSanitizer and UBSan, so a read or write outside of an object ends the process. */
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"
#include "followers.h"
#include "kept.h"
#include "order.h"
#include "readers.h"
#include "record.h"

enum { MOST_INPUT = 1 << 14 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

char *copy(const uint8_t *data, size_t size) {
    char *made = malloc(size + 1);
    CHECK(made != NULL);
    memcpy(made, data, size);
    made[size] = '\0';
    return made;
}

static void read_control_word(const uint8_t *data, size_t size) {
    const struct control control = parse_control((const char *)data, size);
    CHECK(control.kind <= CONTROL_QUIT);
    if (control.kind == CONTROL_SIGNAL) CHECK(control.numbers[0] <= 64);
    if (control.kind == CONTROL_WINDOW) CHECK(control.numbers[0] <= 0xffff && control.numbers[1] <= 0xffff);
}

static void read_order(const uint8_t *data, size_t size) {
    char *text = copy(data, size);
    char **words = malloc((size + 1) * sizeof *words);
    struct order order = {0};
    CHECK(words != NULL);
    if (size > 0 && parse_order(&order, text, size, words)) {
        CHECK(strlen(order.job) <= 64 && strlen(order.start) <= 64 && strchr(order.job, '/') == NULL);
        CHECK(order.log != NULL && (order.launcher == NULL || order.launcher[0] != NULL));
    }
    free(words);
    free(text);
}

static void read_process(const uint8_t *data, size_t size) {
    char *text = copy(data, size);
    struct process process;
    if (parse_process(text, 1, &process)) CHECK(memchr(process.name, '\0', sizeof process.name) != NULL);
    free(text);
}

static char folder[] = "/dev/shm/pgpu-fuzz-XXXXXX";

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status, (void)kind, (void)place;
    return remove(path);
}

static void remove_folder(void) {
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

const char *own_folder(void) {
    static bool is_made;
    char board[sizeof folder + 8];
    if (is_made) return folder;
    CHECK(mkdtemp(folder) != NULL && atexit(remove_folder) == 0);
    snprintf(board, sizeof board, "%s/board", folder);
    CHECK(mkdir(board, 0700) == 0);
    is_made = true;
    return folder;
}

void write_file(const char *name, const uint8_t *data, size_t size) {
    char path[sizeof folder + 64];
    snprintf(path, sizeof path, "%s/%s", own_folder(), name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
}

static void close_log(struct job_log *log) {
    close(log->directory);
    if (log->file.fd >= 0) close(log->file.fd);
    if (log->older.fd >= 0) close(log->older.fd);
    if (log->memory != NULL) munmap(log->memory, 8 << 20);
}

/* The two files of a log that another monitor left, divided at a place that the first byte is. */
static void read_log(const uint8_t *data, size_t size) {
    if (size < 2) return;
    const size_t older = *data++ % size--;
    static char path[64];
    snprintf(path, sizeof path, "%s/log", own_folder());
    write_file("log", data + older, size - older);
    write_file("log.1", data, older);
    struct job_log log = {0};
    char got[RECORD_HEADER + 4];
    log_open(&log, path, 4096);
    const uint64_t place = log.end;
    log_append(&log, 1, "text", 4);
    CHECK(log_read(&log, place, got, sizeof got) == sizeof got &&
          memcmp(got + RECORD_HEADER, "text", 4) == 0);
    CHECK(log_oldest_from(&log, place) == place);
    log_oldest_from(&log, 0);
    close_log(&log);
}

/* What a client sends, in pieces whose size the first byte is. The job reads no input. */
static void read_frames(const uint8_t *data, size_t size) {
    if (size < 2) return;
    const size_t most = (size_t)*data++ + 1;
    size--;
    static struct followers followers;
    static char nowhere[] = "/dev/null/log";
    int ends[2], input[2];
    char answer[1 << 14];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0 && pipe2(input, O_NONBLOCK) == 0);
    struct job_log log = {0};
    struct streams streams = {.outputs = {-1, -1}, .wants_stdin = true, .stdin_end = input[1]};
    log_open(&log, nowhere, 1 << 20);
    log_append(&log, 1, "output", 6);
    followers_init(&followers, &log, &streams, 1000);
    followers.all[0] = (struct follower){.fd = ends[0]};
    followers.places = followers.count = 1;
    for (size_t done = 0; done < size && followers.count > 0;) {
        const ssize_t sent =
            send(ends[1], data + done, size - done < most ? size - done : most, MSG_NOSIGNAL);
        if (sent > 0) done += (size_t)sent;
        followers_ready(&followers, 0, POLLIN | POLLOUT);
        while (recv(ends[1], answer, sizeof answer, 0) > 0)
            continue;
        if (sent < 0) break;
    }
    followers_hang_up(&followers);
    CHECK(followers.count == 0);
    close(followers.spare);
    followers = (struct followers){0};
    close(ends[1]);
    close(input[0]);
    if (streams.stdin_end >= 0) close(input[1]);
    if (streams.input != NULL) munmap(streams.input, MOST_STDIN);
    close_log(&log);
}

/* Requests to a guard, each ended by a zero byte; the first byte is the number of descriptors beside each. */
static void read_requests(const uint8_t *data, size_t size) {
    if (size < 2) return;
    const int count = *data++ % 4;
    int ends[2];
    char *text = copy(data, --size);
    static bool is_ready;
    if (!is_ready) kept_init();
    is_ready = true;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    for (size_t at = 0; at < size; at += strlen(text + at) + 1) {
        int fds[3] = {ends[1], ends[1], ends[1]};
        char space[CMSG_SPACE(sizeof fds)] = "";
        struct iovec part = {text + at, strlen(text + at)};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (count > 0) {
            message.msg_control = space;
            message.msg_controllen = CMSG_SPACE((size_t)count * sizeof *fds);
            struct cmsghdr *header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN((size_t)count * sizeof *fds);
            memcpy(CMSG_DATA(header), fds, (size_t)count * sizeof *fds);
        }
        if (sendmsg(ends[1], &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 || kept_serve(ends[0]) < 0) break;
    }
    close(ends[0]);
    close(ends[1]);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const READERS[])(const uint8_t *, size_t) = {
        read_frames,           read_control_word, read_order, read_log,   read_process,
        read_requests,         read_limit,        read_usage, read_board, read_oci_arguments,
        read_launcher_options, read_exec_settings};
    if (size > 0 && size <= MOST_INPUT)
        READERS[data[0] % (sizeof READERS / sizeof *READERS)](data + 1, size - 1);
    return 0;
}
