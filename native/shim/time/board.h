/* This job's own file on the board, which all its processes write. */
#ifndef PGPU_SHIM_BOARD_H
#define PGPU_SHIM_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "board_abi.h"
#include "meter_abi.h"

/* Map it; NULL, or the reason of a failure. Threads that arrive together map it together and publish one
 * mapping. */
const char *pgpu_board_open(const struct pgpu_limit *limit);

extern struct pgpu_board *pgpu_board_published __attribute__((visibility("hidden")));

/* The words of a GPU of the limit file. NULL: there is no board. */
static inline struct pgpu_board_gpu *pgpu_board_of(int gpu) {
    struct pgpu_board *board = __atomic_load_n(&pgpu_board_published, __ATOMIC_ACQUIRE);
    return board == NULL ? NULL : &board->gpu[gpu];
}

/* The whole file, where pgpu_board_of is not NULL. */
static inline struct pgpu_board *pgpu_board_own(void) {
    return __atomic_load_n(&pgpu_board_published, __ATOMIC_ACQUIRE);
}

/* Inode of the job's own file, to skip it among the others. */
uint64_t pgpu_board_inode(void);

/* Whether a file's first bytes are a board's, and of this version. */
bool pgpu_board_is_sound(const struct pgpu_board *board);

/* Write the path of `name` beside the usage file; false if it is too long. */
bool pgpu_board_path(const struct pgpu_limit *limit, const char *name, char *path, unsigned room);

static inline uint64_t pgpu_board_load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}
static inline void pgpu_board_store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
static inline void pgpu_board_add(uint64_t *word, uint64_t more) {
    __atomic_fetch_add(word, more, __ATOMIC_RELAXED);
}

#endif
