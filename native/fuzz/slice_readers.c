/* The files of a slice: the limit, which the host writes; the usage file, which a job may forge; and the
 * boards, which other jobs may forge. */
#include <string.h>
#include <sys/mman.h>

#include "limit.h"
#include "reader.h"
#include "readers.h"
#include "time/board.h"
#include "time/neighbour_files.h"

/* What neighbour_files.c is linked with instead of the shim. */
const struct pgpu_limit *pgpu_slice_published_limit;

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", own_folder(), name);
    return path;
}

void read_limit(const uint8_t *data, size_t size) {
    const struct pgpu_limit *limit = NULL;
    write_file("limit", data, size);
    enum pgpu_limit_status status = pgpu_limit_open_at(path_of("limit"), &limit);
    CHECK((status == PGPU_LIMIT_OK) == (limit != NULL) && *pgpu_limit_explain(status) != '\0');
    if (limit == NULL) return;
    CHECK(limit->gpu_count >= 1 && limit->gpu_count <= PGPU_MAX_GPUS && limit->usage_path[0] == '/');
    for (unsigned gpu = 0; gpu < limit->gpu_count; gpu++) {
        CHECK(pgpu_limit_bytes(limit, gpu) <= pgpu_limit_shown_bytes(limit, gpu));
        CHECK(pgpu_limit_index_of(limit, limit->gpu[gpu].uuid) <= (int)gpu);
    }
    munmap((void *)limit, sizeof *limit);
}

void read_usage(const uint8_t *data, size_t size) {
    static struct pgpu_reader_view view;
    write_file("usage", data, size);
    if (pgpu_reader_read(path_of("usage"), &view) == PGPU_METER_OK) CHECK(view.slot_count <= PGPU_MAX_SLOTS);
}

/* The job's own file, and one of another job, cut short at a place that the first byte is. */
void read_board(const uint8_t *data, size_t size) {
    static struct pgpu_limit limit = {.gpu_count = 1};
    static uint64_t now_ns = 1;
    if (size < 2) return;
    snprintf(limit.usage_path, sizeof limit.usage_path, "%s", path_of("usage"));
    pgpu_slice_published_limit = &limit;
    write_file("time", data + 1, size - 1);
    write_file("board/00000000fuzz", data + 1, size - 1 - *data % (size - 1));
    if (pgpu_board_open(&limit) == NULL) {
        CHECK(pgpu_board_is_sound(pgpu_board_published));
        munmap(pgpu_board_published, sizeof *pgpu_board_published);
        pgpu_board_published = NULL;
    }
    pgpu_neighbour_files_forget();
    pgpu_neighbour_files_refresh(now_ns += 1000000000, true);
    for (unsigned at = 0; at < pgpu_neighbour_files_count(); at++) {
        const struct pgpu_other *other = pgpu_neighbour_files_at(at);
        CHECK(!other->is_read || other->board.gpu_count <= PGPU_MAX_GPUS);
    }
}
