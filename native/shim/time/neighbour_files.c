#define _GNU_SOURCE
#include "time/neighbour_files.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "time/board.h"
#include "clock.h"
#include "slice/slice.h"

#define LISTED_EACH_NS 20000000ull
#define LOOKED_EACH_NS 1000000ull
/* Opening, reading and closing a file takes 3 µs; reading a name 0.5 µs. Each process of a crowded GPU reads
 * all files: 1 to 2 % of its time. */
#define LOOK_NS_PER_FILE 200000ull
#define LIST_NS_PER_NAME 20000ull
#define LOOKED_AT_LEAST  20000000ull
/* On a busy machine it takes many times that: then at most an eighth of the time is spent on it. */
#define LOOK_PART       8u
#define LONGEST_EACH_NS 100000000ull
/* The host's limit on the number of jobs. */
#define MOST_OTHERS 1024u

static struct pgpu_other others[MOST_OTHERS];
static unsigned other_count, name_count, latest_found;
static uint64_t listed_at_ns, looked_at_ns, took_ns, own_user;
static bool is_list_unknown, is_file_unknown;

/* Names come in the same order each time, so the next one is usually in the expected row. */
static struct pgpu_other *find(const char *name) {
    for (unsigned step = 0; step < other_count; step++) {
        unsigned at = (latest_found + 1 + step) % other_count;
        if (strcmp(others[at].name, name) != 0) continue;
        latest_found = at;
        return &others[at];
    }
    return NULL;
}

/* The host names a file after the GPUs of its job: the first characters of each UUID, behind a dash. */
static bool has_gpu_of_ours(const char *name) {
    const struct pgpu_limit *limit = pgpu_slice_limit();
    if (strchr(name, '-') == NULL) return true;
    for (unsigned gpu = 0; gpu < limit->gpu_count; gpu++) {
        const uint8_t *uuid = limit->gpu[gpu].uuid;
        char tag[16];
        snprintf(tag, sizeof(tag), "-%02x%02x%02x%02x", uuid[0], uuid[1], uuid[2], uuid[3]);
        if (strstr(name, tag) != NULL) return true;
    }
    return false;
}

static uint64_t user_of(const char *name) {
    char digits[PGPU_BOARD_USER_DIGITS] = {0};
    uint64_t user;
    memcpy(digits, name, strnlen(name, sizeof(digits)));
    memcpy(&user, digits, sizeof(user));
    return user;
}

/* The job's own file is in the folder too. False: there is no room, so a job would be missed. */
static bool note(const char *name, uint64_t inode) {
    name_count++;
    if (inode == pgpu_board_inode()) own_user = user_of(name);
    if (name[0] == '.' || inode == pgpu_board_inode()) return true;
    struct pgpu_other *other = find(name);
    if (other == NULL) {
        if (!has_gpu_of_ours(name)) return true;
        if (strlen(name) >= sizeof(other->name) || other_count == MOST_OTHERS) return false;
        other = &others[other_count++];
        memset(other, 0, sizeof(*other));
        strcpy(other->name, name);
        other->user = user_of(name);
    }
    other->is_listed = true;
    return true;
}

/* As getdents64(2) gives it. */
struct entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

static bool list(int fd) {
    _Alignas(struct entry) char buffer[4096];
    long bytes;
    bool is_whole = true;
    name_count = 0;
    while ((bytes = syscall(SYS_getdents64, fd, buffer, sizeof(buffer))) > 0)
        for (long at = 0; at < bytes;) {
            const struct entry *entry = (const void *)(buffer + at);
            is_whole &= note(entry->name, entry->inode);
            at += entry->length;
        }
    return bytes == 0 && is_whole;
}

static void drop_unlisted(void) {
    unsigned kept = 0;
    for (unsigned at = 0; at < other_count; at++) {
        if (!others[at].is_listed) continue;
        if (kept != at) others[kept] = others[at];
        kept++;
    }
    other_count = kept;
}

static int open_board(void) {
    char path[PGPU_PATH_BYTES + 8];
    if (!pgpu_board_path(pgpu_slice_limit(), "board", path, sizeof(path))) return -1;
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void list_when_due(int board_fd, uint64_t now_ns) {
    uint64_t each_ns = name_count * LIST_NS_PER_NAME;
    if (each_ns < LISTED_EACH_NS) each_ns = LISTED_EACH_NS;
    if (now_ns < listed_at_ns + each_ns && listed_at_ns != 0) return;
    listed_at_ns = now_ns;
    for (unsigned at = 0; at < other_count; at++)
        others[at].is_listed = false;
    is_list_unknown = !list(board_fd);
    drop_unlisted();
}

/* Opened for each read: a program may close descriptors that it did not open. */
static void read_board(int board_fd, struct pgpu_other *other) {
    size_t wanted = offsetof(struct pgpu_board, reserved_to_page);
    other->is_read = false;
    int fd = openat(board_fd, other->name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) return; /* the job has just ended */
    bool is_whole = pread(fd, &other->board, wanted, 0) == (ssize_t)wanted;
    close(fd);
    other->is_read = is_whole && pgpu_board_is_sound(&other->board);
    /* A board of another version: its job may be entitled to any share. A file that is no board is skipped.
     */
    if (is_whole && other->board.magic == PGPU_BOARD_MAGIC && other->board.abi != PGPU_BOARD_ABI)
        is_file_unknown = true;
}

/* Interval between reads. */
static uint64_t each_ns(bool is_urgent) {
    uint64_t by_count_ns = is_urgent ? 0 : pgpu_least_ns(other_count * LOOK_NS_PER_FILE, LOOKED_AT_LEAST);
    uint64_t by_time_ns = pgpu_least_ns(took_ns * LOOK_PART, LONGEST_EACH_NS);
    return pgpu_most_ns(pgpu_most_ns(by_count_ns, by_time_ns), LOOKED_EACH_NS);
}

static void read_due(uint64_t now_ns) {
    int board_fd = open_board();
    is_file_unknown = false;
    if (board_fd < 0) {
        is_list_unknown = true;
        return;
    }
    list_when_due(board_fd, now_ns);
    for (unsigned at = 0; at < other_count; at++)
        read_board(board_fd, &others[at]);
    close(board_fd);
}

void pgpu_neighbour_files_refresh(uint64_t now_ns, bool is_urgent) {
    if (looked_at_ns != 0 && now_ns < looked_at_ns + each_ns(is_urgent)) return;
    looked_at_ns = now_ns;
    uint64_t began_ns = pgpu_now_ns();
    read_due(now_ns);
    took_ns = pgpu_now_ns() - began_ns;
}

uint64_t pgpu_neighbour_files_seen_ns(void) {
    return looked_at_ns;
}

bool pgpu_neighbour_files_are_unknown(void) {
    return is_list_unknown || is_file_unknown;
}

uint64_t pgpu_neighbour_files_own_user(void) {
    return own_user;
}

unsigned pgpu_neighbour_files_count(void) {
    return other_count;
}

struct pgpu_other *pgpu_neighbour_files_at(unsigned index) {
    return &others[index];
}

void pgpu_neighbour_files_forget(void) {
    other_count = name_count = 0;
    listed_at_ns = looked_at_ns = 0;
}
