#include "time/board.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cancellation.h"

struct pgpu_board *pgpu_board_published;
static uint64_t inode;

uint64_t pgpu_board_inode(void) {
    return __atomic_load_n(&inode, __ATOMIC_RELAXED);
}

bool pgpu_board_path(const struct pgpu_limit *limit, const char *name, char *path, unsigned room) {
    const char *slash = strrchr(limit->usage_path, '/');
    int folder = slash == NULL ? 0 : (int)(slash - limit->usage_path);
    int length = snprintf(path, room, "%.*s/%s", folder, limit->usage_path, name);
    return length > 0 && length < (int)room;
}

bool pgpu_board_is_sound(const struct pgpu_board *board) {
    return __atomic_load_n(&board->magic, __ATOMIC_ACQUIRE) == PGPU_BOARD_MAGIC &&
           board->abi == PGPU_BOARD_ABI && board->gpu_count <= PGPU_MAX_GPUS;
}

/* The first process fills it in; processes that do so at once write the same values. */
static bool claim(struct pgpu_board *board, const struct pgpu_limit *limit) {
    if (__atomic_load_n(&board->magic, __ATOMIC_ACQUIRE) == 0) {
        for (unsigned gpu = 0; gpu < limit->gpu_count; gpu++)
            memcpy(board->gpu[gpu].uuid, limit->gpu[gpu].uuid, sizeof(board->gpu[gpu].uuid));
        board->abi = PGPU_BOARD_ABI;
        board->gpu_count = limit->gpu_count;
        __atomic_store_n(&board->magic, PGPU_BOARD_MAGIC, __ATOMIC_RELEASE);
    }
    return pgpu_board_is_sound(board) && board->gpu_count == limit->gpu_count;
}

static struct pgpu_board *map(int fd) {
    struct stat info;
    /* A mapping of a shorter file would raise SIGBUS later. */
    if (fstat(fd, &info) != 0 || info.st_size < (off_t)sizeof(struct pgpu_board)) return NULL;
    __atomic_store_n(&inode, info.st_ino, __ATOMIC_RELAXED);
    void *at = mmap(NULL, sizeof(struct pgpu_board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static const char *open_and_publish(const struct pgpu_limit *limit) {
    char path[PGPU_PATH_BYTES + 8];
    if (!pgpu_board_path(limit, "time", path, sizeof(path))) return "the path of its GPU time is too long";
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return "the file of its GPU time cannot be opened";
    struct pgpu_board *board = map(fd), *none = NULL;
    close(fd);
    if (board == NULL) return "the file of its GPU time cannot be used";
    if (!claim(board, limit)) {
        munmap(board, sizeof(*board));
        return "the file of its GPU time is invalid";
    }
    /* The first mapping wins. Those of threads that arrived together stay mapped: another thread may use
     * them. */
    __atomic_compare_exchange_n(&pgpu_board_published, &none, board, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return NULL;
}

const char *pgpu_board_open(const struct pgpu_limit *limit) {
    if (__atomic_load_n(&pgpu_board_published, __ATOMIC_ACQUIRE) != NULL) return NULL;
    int before = pgpu_cancellation_defer();
    const char *why = open_and_publish(limit);
    pgpu_cancellation_restore(before);
    return why;
}
