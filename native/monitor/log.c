#include "log.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FILE_HEADER = 16 };
#define MEMORY      ((uint64_t)8 << 20) /* more than a client may lag behind */
#define MOST_OFFSET ((uint64_t)1 << 62) /* no job writes that much: the header is damaged */
#define RETRY_NS    1000000000ull       /* before a file that could not be written is tried again */
static const char MAGIC[8] = {'P', 'G', 'P', 'U', 'L', 'O', 'G', 1};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void put_header(unsigned char *to, int stream, uint32_t length, uint64_t time_ns) {
    length = htobe32(length);
    time_ns = htobe64(time_ns);
    to[0] = (unsigned char)stream;
    memcpy(to + 1, &length, sizeof length);
    memcpy(to + 5, &time_ns, sizeof time_ns);
}

static uint32_t payload_of(const unsigned char *header) {
    uint32_t length;
    memcpy(&length, header + 1, sizeof length);
    return be32toh(length);
}

/* Ends the file behind `payload` bytes of the record at `place`; without any, before the record. */
static void end_record(struct log_file *file, uint64_t place, uint64_t payload) {
    if (payload > 0) {
        const uint32_t length = htobe32((uint32_t)payload);
        if (pwrite(file->fd, &length, sizeof length, (off_t)place + 1) == sizeof length)
            place += RECORD_HEADER + payload;
    }
    if (ftruncate(file->fd, (off_t)place) == 0) file->size = place;
}

/* All of it or nothing. */
static bool file_append(struct log_file *file, const void *data, size_t length) {
    size_t done = 0;
    while (done < length) {
        const ssize_t put =
            pwrite(file->fd, (const char *)data + done, length - done, (off_t)(file->size + done));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            end_record(file, file->size, 0);
            return false;
        }
        done += (size_t)put;
    }
    file->size += length;
    return true;
}

static uint64_t file_end(const struct log_file *file) {
    return file->base + file->size - FILE_HEADER;
}

/* A file whose header was never finished, or is damaged, counts as absent. */
static struct log_file file_open(int directory, const char *name) {
    struct log_file file = {.fd = openat(directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW)};
    if (file.fd < 0) return file;
    unsigned char header[FILE_HEADER] = {0};
    struct stat status;
    const bool is_log = pread(file.fd, header, sizeof header, 0) == FILE_HEADER &&
                        memcmp(header, MAGIC, 8) == 0 && fstat(file.fd, &status) == 0;
    memcpy(&file.base, header + 8, 8);
    file.base = be64toh(file.base);
    if (!is_log || file.base > MOST_OFFSET) {
        close(file.fd);
        return (struct log_file){.fd = -1};
    }
    file.size = (uint64_t)status.st_size;
    return file;
}

static struct log_file file_create(int directory, const char *name, uint64_t base) {
    struct log_file file = {
        .fd = openat(directory, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600),
        .base = base};
    if (file.fd < 0) return file;
    unsigned char header[FILE_HEADER];
    const uint64_t base_be = htobe64(base);
    memcpy(header, MAGIC, 8);
    memcpy(header + 8, &base_be, 8);
    if (!file_append(&file, header, sizeof header)) {
        close(file.fd);
        file.fd = -1;
    }
    return file;
}

/* A monitor that was killed may have left half a record: it keeps the bytes that arrived. */
static void end_unfinished(struct log_file *file) {
    uint64_t place = FILE_HEADER;
    unsigned char header[RECORD_HEADER];
    while (pread(file->fd, header, sizeof header, (off_t)place) == RECORD_HEADER) {
        const uint64_t following = place + RECORD_HEADER + payload_of(header);
        if (payload_of(header) > MOST_PAYLOAD) break;
        if (following > file->size) {
            end_record(file, place, file->size - place - RECORD_HEADER);
            return;
        }
        place = following;
    }
    end_record(file, place, 0);
}

/* What the older half holds beyond the beginning of the newer one was never confirmed: a full disk took a
 * part of a record, and could not cut it off. */
static void end_before(struct log_file *older, uint64_t base) {
    if (older->fd < 0 || file_end(older) <= base) return;
    older->size = FILE_HEADER + (base > older->base ? base - older->base : 0);
}

static void keep_in_memory(struct job_log *log) {
    if (log->memory != NULL) return;
    void *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    log->memory = memory;
    log->memory_begin = log->end;
    log->tried_at_ns = now_ns();
}

void log_open(struct job_log *log, char *path, uint64_t cap) {
    char *slash = strrchr(path, '/');
    snprintf(log->name, sizeof log->name, "%s", slash != NULL ? slash + 1 : path);
    snprintf(log->older_name, sizeof log->older_name, "%s.1", log->name);
    log->half = cap / 2 > FILE_HEADER ? cap / 2 : FILE_HEADER + 1;
    if (slash != NULL) *slash = '\0'; /* in place: a copy would cost every monitor a page of stack */
    log->directory = open(slash != NULL ? path : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (slash != NULL) *slash = '/';
    log->older = file_open(log->directory, log->older_name);
    log->file = file_open(log->directory, log->name);
    if (log->file.fd < 0)
        log->file = file_create(log->directory, log->name, log->older.fd < 0 ? 0 : file_end(&log->older));
    if (log->file.fd < 0) {
        keep_in_memory(log);
        return;
    }
    end_unfinished(&log->file);
    end_before(&log->older, log->file.base);
    log->end = file_end(&log->file);
}

/* A crash between the two steps leaves the older half alone, which the next `log_open` goes on from. */
static bool rotate(struct job_log *log) {
    if (renameat(log->directory, log->name, log->directory, log->older_name) != 0) return false;
    if (log->older.fd >= 0) close(log->older.fd);
    log->older = log->file;
    log->file = file_create(log->directory, log->name, file_end(&log->older));
    return log->file.fd >= 0;
}

static bool make_room(struct job_log *log, uint64_t length) {
    if (log->file.fd < 0) {
        /* Created where the disk was full at the last rotation, or at the start. */
        log->file =
            file_create(log->directory, log->name, log->memory == NULL ? log->end : log->memory_begin);
        return log->file.fd >= 0;
    }
    if (log->file.size + length <= log->half || log->file.size <= FILE_HEADER) return true;
    return rotate(log);
}

/* The oldest records go first, whole ones, so that a reader behind a gap begins with a record. */
static void drop_oldest(struct job_log *log, uint64_t length) {
    while (log->end + length - log->memory_begin > MEMORY && log->memory_begin < log->end) {
        unsigned char header[RECORD_HEADER];
        for (int i = 0; i < RECORD_HEADER; i++)
            header[i] = (unsigned char)log->memory[(log->memory_begin + (uint64_t)i) % MEMORY];
        const uint64_t size = RECORD_HEADER + payload_of(header);
        log->memory_begin += size;
        log->dropped += size;
    }
}

static void keep(struct job_log *log, const void *data, size_t length) {
    for (size_t done = 0; done < length;) {
        const uint64_t place = (log->end + done) % MEMORY;
        const size_t part = length - done < MEMORY - place ? length - done : (size_t)(MEMORY - place);
        memcpy(log->memory + place, (const char *)data + done, part);
        done += part;
    }
}

static size_t kept(const struct job_log *log, uint64_t offset, void *buffer, size_t most) {
    const uint64_t place = offset % MEMORY;
    size_t part = log->end - offset < most ? (size_t)(log->end - offset) : most;
    if (part > MEMORY - place) part = (size_t)(MEMORY - place);
    memcpy(buffer, log->memory + place, part);
    return part;
}

void log_save(struct job_log *log) {
    if (log->memory == NULL || log->end - log->memory_begin > log->half) return;
    if (log->file.fd >= 0 && file_end(&log->file) != log->memory_begin) return; /* a gap stays in memory */
    if (!make_room(log, log->end - log->memory_begin)) return;
    if (file_end(&log->file) != log->memory_begin) return;
    const uint64_t before = log->file.size;
    char part[1 << 14];
    for (uint64_t offset = log->memory_begin; offset < log->end;) {
        const size_t got = kept(log, offset, part, sizeof part);
        if (!file_append(&log->file, part, got)) {
            end_record(&log->file, before, 0);
            return;
        }
        offset += got;
    }
    munmap(log->memory, MEMORY);
    log->memory = NULL;
}

void log_append(struct job_log *log, int stream, const void *data, size_t length) {
    const uint64_t time_ns = now_ns();
    unsigned char header[RECORD_HEADER];
    put_header(header, stream, (uint32_t)length, time_ns);
    if (log->memory != NULL && time_ns - log->tried_at_ns >= RETRY_NS) {
        log->tried_at_ns = time_ns;
        log_save(log);
    }
    if (log->memory == NULL) {
        if (make_room(log, RECORD_HEADER + length)) {
            const uint64_t place = log->file.size;
            if (file_append(&log->file, header, sizeof header)) {
                if (file_append(&log->file, data, length)) {
                    log->end += RECORD_HEADER + length;
                    return;
                }
                end_record(&log->file, place, 0);
            }
        }
        keep_in_memory(log);
    }
    if (log->memory == NULL) { /* no memory either */
        log->dropped += RECORD_HEADER + length;
        return;
    }
    drop_oldest(log, RECORD_HEADER + length);
    keep(log, header, sizeof header);
    log->end += sizeof header;
    keep(log, data, length);
    log->end += length;
}

/* Moves what waits in a pipe into the file without a copy in this process, so that a kill at any instant
 * loses no byte. Returns the number of bytes; if it is 0, the caller reads instead. */
size_t log_take(struct job_log *log, int stream, int pipe, size_t most) {
    int waiting = 0;
    if (log->memory != NULL || ioctl(pipe, FIONREAD, &waiting) != 0 || waiting <= 0) return 0;
    const size_t length = (size_t)waiting < most ? (size_t)waiting : most;
    if (!make_room(log, RECORD_HEADER + length)) return 0;
    unsigned char header[RECORD_HEADER];
    put_header(header, stream, (uint32_t)length, now_ns());
    const uint64_t place = log->file.size;
    if (!file_append(&log->file, header, sizeof header)) return 0;
    size_t taken = 0;
    while (taken < length) {
        off_t to = (off_t)(log->file.size + taken);
        const ssize_t moved = splice(pipe, NULL, log->file.fd, &to, length - taken, SPLICE_F_NONBLOCK);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) break;
        taken += (size_t)moved;
    }
    if (taken < length)
        end_record(&log->file, place, taken);
    else
        log->file.size += taken;
    log->end = file_end(&log->file);
    return taken;
}

static bool file_holds(const struct log_file *file, uint64_t offset) {
    return file->fd >= 0 && file->base <= offset && offset < file_end(file);
}

size_t log_read(const struct job_log *log, uint64_t offset, void *buffer, size_t most) {
    if (log->memory != NULL && offset >= log->memory_begin) return kept(log, offset, buffer, most);
    const struct log_file *file = file_holds(&log->older, offset) ? &log->older : &log->file;
    if (!file_holds(file, offset)) return 0;
    if (most > file_end(file) - offset) most = (size_t)(file_end(file) - offset);
    const ssize_t got = pread(file->fd, buffer, most, (off_t)(offset - file->base + FILE_HEADER));
    return got > 0 ? (size_t)got : 0;
}

uint64_t log_oldest_from(const struct job_log *log, uint64_t offset) {
    const struct log_file *files[] = {&log->older, &log->file};
    for (int i = 0; i < 2; i++) {
        if (files[i]->fd < 0 || offset >= file_end(files[i]) || files[i]->size <= FILE_HEADER) continue;
        return offset > files[i]->base ? offset : files[i]->base;
    }
    if (log->memory != NULL && offset < log->memory_begin) return log->memory_begin;
    return offset < log->end ? offset : log->end;
}
