/* The log of one job: its output as records in a file, with the older half in a second file beside it.
 *
 * Every byte has an offset that never changes, counted from the job's first, so that readers go on after a
 * rotation. A log that cannot be written (full disk) never stops a job: the last 8 MiB stay in memory then
 * and are written once there is room again, unless some of them had to go. The format is that of
 * pgpu.engine.streams.log, which reads it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { RECORD_HEADER = 13, MOST_PAYLOAD = 1 << 24 };

struct log_file {
    int fd; /* -1: there is none */
    uint64_t base;
    uint64_t size; /* of the file, its header included */
};

struct job_log {
    int directory;
    char name[256], older_name[260];
    uint64_t half; /* most bytes of one file */
    struct log_file file, older;
    char *memory;          /* NULL: everything is in the files */
    uint64_t memory_begin; /* offset of the oldest byte in memory, the beginning of a record */
    uint64_t tried_at_ns;
    uint64_t dropped; /* bytes that were neither written nor kept */
    uint64_t end;
};

/* `path` is unchanged afterwards. */
void log_open(struct job_log *log, char *path, uint64_t cap);
void log_append(struct job_log *log, int stream, const void *data, size_t length);
size_t log_take(struct job_log *log, int stream, int pipe, size_t most);
void log_save(struct job_log *log);
size_t log_read(const struct job_log *log, uint64_t offset, void *buffer, size_t most);
uint64_t log_oldest_from(const struct job_log *log, uint64_t offset);
