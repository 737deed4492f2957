/* dladdr: which file we were loaded from. */
#define _GNU_SOURCE
#include "limit.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "version.h"

#define DELIVERED_PATH "/.pgpu/limit"

static bool is_terminated(const char *text, unsigned size_bytes) {
    return memchr(text, '\0', size_bytes) != NULL;
}

static enum pgpu_limit_status check(const struct pgpu_limit *limit) {
    if (limit->magic != PGPU_LIMIT_MAGIC) return PGPU_LIMIT_GARBLED;
    enum pgpu_meter_status version = pgpu_version_check(limit->abi);
    if (version == PGPU_METER_NEWER) return PGPU_LIMIT_NEWER;
    bool is_sound = version == PGPU_METER_OK && limit->gpu_count >= 1 && limit->gpu_count <= PGPU_MAX_GPUS &&
                    (!pgpu_limit_oversubscribes(limit) || limit->gpu_count <= PGPU_MAX_PAGED_GPUS) &&
                    is_terminated(limit->real_cuda_path, PGPU_PATH_BYTES) &&
                    is_terminated(limit->real_nvml_path, PGPU_PATH_BYTES) &&
                    is_terminated(limit->usage_path, PGPU_PATH_BYTES) && limit->usage_path[0] == '/';
    return is_sound ? PGPU_LIMIT_OK : PGPU_LIMIT_GARBLED;
}

static bool is_on_read_only_mount(int fd) {
    struct statvfs mount;
    return fstatvfs(fd, &mount) == 0 && (mount.f_flag & ST_RDONLY) != 0;
}

static enum pgpu_limit_status map(int fd, const struct pgpu_limit **limit) {
    /* A shorter file would be a SIGBUS later. */
    if (lseek(fd, 0, SEEK_END) < (off_t)sizeof(struct pgpu_limit)) return PGPU_LIMIT_GARBLED;
    void *at = mmap(NULL, sizeof(struct pgpu_limit), PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return PGPU_LIMIT_UNREADABLE;
    enum pgpu_limit_status status = check(at);
    if (status == PGPU_LIMIT_OK && ((const struct pgpu_limit *)at)->requires_read_only &&
        !is_on_read_only_mount(fd))
        status = PGPU_LIMIT_WRITABLE;
    if (status == PGPU_LIMIT_OK)
        *limit = at;
    else
        munmap(at, sizeof(struct pgpu_limit));
    return status;
}

enum pgpu_limit_status pgpu_limit_open_at(const char *path, const struct pgpu_limit **limit) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? PGPU_LIMIT_MISSING : PGPU_LIMIT_UNREADABLE;
    enum pgpu_limit_status status = map(fd, limit);
    close(fd);
    return status;
}

/* Without mounts the shim is preloaded from the slice's own directory, where the limit file is beside it. */
static enum pgpu_limit_status open_beside(const void *own_code, const struct pgpu_limit **limit) {
    char path[4096];
    Dl_info own;
    if (dladdr(own_code, &own) == 0 || own.dli_fname == NULL) return PGPU_LIMIT_MISSING;
    const char *slash = strrchr(own.dli_fname, '/');
    size_t folder_length = slash == NULL ? 0 : (size_t)(slash - own.dli_fname) + 1;
    if (folder_length == 0 || folder_length + sizeof("limit") > sizeof(path)) return PGPU_LIMIT_MISSING;
    memcpy(path, own.dli_fname, folder_length);
    memcpy(path + folder_length, "limit", sizeof("limit"));
    return pgpu_limit_open_at(path, limit);
}

enum pgpu_limit_status pgpu_limit_open(const void *own_code, const struct pgpu_limit **limit) {
    enum pgpu_limit_status status = pgpu_limit_open_at(DELIVERED_PATH, limit);
    return status == PGPU_LIMIT_MISSING ? open_beside(own_code, limit) : status;
}

/* The host rewrites the words of the mapped file while the job runs (`pgpu resize`). Each is read atomically;
 * no order between them is needed. */
uint64_t pgpu_limit_shown_bytes(const struct pgpu_limit *limit, unsigned index) {
    return __atomic_load_n(&limit->gpu[index].limit_bytes, __ATOMIC_RELAXED);
}

uint64_t pgpu_limit_overhead_bytes(const struct pgpu_limit *limit, unsigned index) {
    return __atomic_load_n(&limit->gpu[index].overhead_bytes, __ATOMIC_RELAXED);
}

uint64_t pgpu_limit_bytes(const struct pgpu_limit *limit, unsigned index) {
    uint64_t shown_bytes = pgpu_limit_shown_bytes(limit, index);
    uint64_t overhead_bytes = pgpu_limit_overhead_bytes(limit, index);
    return shown_bytes > overhead_bytes ? shown_bytes - overhead_bytes : 0;
}

uint64_t pgpu_limit_resident_bytes(const struct pgpu_limit *limit, unsigned index) {
    uint64_t resident_bytes = __atomic_load_n(&limit->gpu[index].resident_bytes, __ATOMIC_RELAXED);
    uint64_t overhead_bytes = pgpu_limit_overhead_bytes(limit, index);
    return resident_bytes > overhead_bytes ? resident_bytes - overhead_bytes : 0;
}

int pgpu_limit_index_of(const struct pgpu_limit *limit, const uint8_t uuid[16]) {
    for (unsigned index = 0; index < limit->gpu_count; index++)
        if (memcmp(limit->gpu[index].uuid, uuid, 16) == 0) return (int)index;
    return -1;
}

const char *pgpu_limit_explain(enum pgpu_limit_status status) {
    switch (status) {
    case PGPU_LIMIT_OK:
        return "the limit file is valid";
    case PGPU_LIMIT_MISSING:
        return "there is no limit file";
    case PGPU_LIMIT_UNREADABLE:
        return "the limit file cannot be read";
    case PGPU_LIMIT_GARBLED:
        return "the limit file is invalid";
    case PGPU_LIMIT_NEWER:
        return "the limit file is of a newer version";
    case PGPU_LIMIT_WRITABLE:
        return "the limit file is not on a read-only mount";
    }
    return "the limit file is unknown";
}
