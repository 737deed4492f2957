#include "memory/shared_allocation.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "lock.h"

#define PAGE_BYTES 4096u

/* Of a range: how its memory is shared. */
struct share {
    char name[SIM_SHARE_NAME_BYTES];
    unsigned opening_count; /* in an importer */
};

static bool take_shared_lock(int fd) {
    struct flock lock = pgpu_lock_at(0, F_RDLCK);
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

/* A file becomes visible only once it is locked, so a sweep never takes it for left over. */
int sim_share_file_make(char name[SIM_SHARE_NAME_BYTES], size_t bytes) {
    static unsigned count;
    char path[SIM_PATH_BYTES], link[64];
    /* A slot has one owner at a time, and a later owner begins later. */
    snprintf(name, SIM_SHARE_NAME_BYTES, "shared-%u-%u-%x", sim_driver.slot, ++count,
             (unsigned)(sim_now_ns() >> 10));
    int fd = open(sim_driver.directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (fd < 0) return -1;
    fchmod(fd, 0666);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    bool is_made = ftruncate(fd, (off_t)bytes) == 0 && take_shared_lock(fd) &&
                   sim_state_path(sim_driver.directory, name, path) &&
                   linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
    if (is_made) return fd;
    close(fd);
    return -1;
}

static bool is_zero(const char *page) {
    return page[0] == 0 && memcmp(page, page + 1, PAGE_BYTES - 1) == 0;
}

/* Pages that were never written stay holes. */
static bool copy_pages(int fd, uintptr_t start, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE_BYTES) {
        const char *page = (const char *)start + at;
        if (!is_zero(page) && pwrite(fd, page, PAGE_BYTES, (off_t)at) != PAGE_BYTES) return false;
    }
    return true;
}

static bool replace_pages(int fd, uintptr_t start, size_t bytes) {
    if (!sim_driver.has_backing) return true;
    if (!copy_pages(fd, start, bytes)) return false;
    return mmap((void *)start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
}

static void fill(const struct sim_range *range, const struct share *share, struct sim_share_ticket *ticket) {
    *ticket = (struct sim_share_ticket){
        .magic = SIM_SHARE_MEMORY_MAGIC, .gpu = range->gpu, .bytes = range->bytes, .address = range->start};
    memcpy(ticket->name, share->name, sizeof(ticket->name));
}

CUresult sim_share(struct sim_range *range, struct sim_share_ticket *ticket) {
    sim_checkpoint_refuse_shared();
    struct share *share = range->source != NULL ? range->source : calloc(1, sizeof(*share));
    if (share == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    if (range->source == NULL) {
        size_t bytes = sim_round_up(range->bytes, PAGE_BYTES);
        int fd = sim_share_file_make(share->name, bytes);
        bool is_shared = fd >= 0 && replace_pages(fd, range->start, bytes);
        if (fd >= 0) close(fd);
        if (!is_shared) {
            free(share);
            return CUDA_ERROR_MAP_FAILED;
        }
        range->source = share;
    }
    fill(range, share, ticket);
    return CUDA_SUCCESS;
}

int sim_share_file_open(const char name[SIM_SHARE_NAME_BYTES]) {
    char path[SIM_PATH_BYTES];
    if (memchr(name, '/', SIM_SHARE_NAME_BYTES) != NULL || strncmp(name, "shared-", 7) != 0) return -1;
    if (!sim_state_path(sim_driver.directory, name, path)) return -1;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && take_shared_lock(fd)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static uintptr_t map_file(const struct sim_share_ticket *ticket) {
    size_t bytes = sim_round_up(ticket->bytes, PAGE_BYTES);
    struct stat status;
    if (!sim_driver.has_backing) return sim_backing_map(bytes, PAGE_BYTES);
    int fd = sim_share_file_open(ticket->name);
    if (fd < 0) return 0;
    void *at = MAP_FAILED;
    if (fstat(fd, &status) == 0 && status.st_size >= (off_t)bytes)
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? 0 : (uintptr_t)at;
}

static CUdevice device_of(unsigned gpu) {
    CUdevice device = 0;
    while (device < sim_driver.device_count && sim_driver.gpu_of_device[device] != gpu)
        device++;
    return device;
}

static struct sim_range *find_open(const char *name) {
    for (struct sim_range *range = sim_range_after(&sim_ranges, 0); range != NULL;
         range = sim_range_after(&sim_ranges, range->start + 1)) {
        const struct share *share = range->source;
        if (range->kind == SIM_IMPORTED && share != NULL && strcmp(share->name, name) == 0) return range;
    }
    return NULL;
}

static CUresult open_anew(const struct sim_share_ticket *ticket, struct sim_range **opened) {
    struct share *share = calloc(1, sizeof(*share));
    uintptr_t start = share == NULL ? 0 : map_file(ticket);
    struct sim_range *range = start == 0 ? NULL : sim_range_new(SIM_IMPORTED, start, ticket->bytes);
    if (range == NULL) {
        free(share);
        return CUDA_ERROR_MAP_FAILED;
    }
    memcpy(share->name, ticket->name, sizeof(share->name));
    share->opening_count = 1;
    range->source = share;
    range->backed_bytes = sim_round_up(ticket->bytes, PAGE_BYTES);
    range->gpu = ticket->gpu;
    range->device = device_of(ticket->gpu);
    *opened = range;
    return CUDA_SUCCESS;
}

CUresult sim_share_open(const struct sim_share_ticket *ticket, struct sim_range **opened) {
    sim_checkpoint_refuse_shared();
    if (ticket->magic != SIM_SHARE_MEMORY_MAGIC || ticket->bytes == 0 ||
        ticket->name[SIM_SHARE_NAME_BYTES - 1] != '\0')
        return CUDA_ERROR_INVALID_VALUE;
    if (ticket->gpu >= sim_driver.config.device_count || !sim_is_device(device_of(ticket->gpu)))
        return CUDA_ERROR_INVALID_DEVICE;
    *opened = find_open(ticket->name);
    if (*opened == NULL) return open_anew(ticket, opened);
    ((struct share *)(*opened)->source)->opening_count++;
    return CUDA_SUCCESS;
}

void sim_share_close(struct sim_range *range) {
    struct share *share = range->source;
    if (--share->opening_count > 0) return;
    free(share);
    range->source = NULL;
    sim_range_free(range);
}

void sim_share_file_remove(const char name[SIM_SHARE_NAME_BYTES]) {
    char path[SIM_PATH_BYTES];
    if (sim_state_path(sim_driver.directory, name, path)) unlink(path);
}

void sim_share_end(struct sim_range *range) {
    struct share *share = range->source;
    if (share == NULL) return;
    if (share->opening_count == 0) sim_share_file_remove(share->name);
    free(share);
    range->source = NULL;
}

static void remove_if_left(const char *name) {
    char path[SIM_PATH_BYTES];
    if (!sim_state_path(sim_driver.directory, name, path)) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    if (pgpu_try_lock(fd, 0)) unlink(path);
    close(fd);
}

void sim_share_sweep(void) {
    DIR *directory = opendir(sim_driver.directory);
    if (directory == NULL) return;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (strncmp(entry->d_name, "shared-", 7) == 0) remove_if_left(entry->d_name);
    closedir(directory);
}

SIM_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    struct sim_share_ticket ticket;
    if (handle == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    struct sim_range *range = sim_range_at(&sim_ranges, address);
    if (range == NULL || range->kind != SIM_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_share(range, &ticket));
    memcpy(handle, &ticket, sizeof(*handle));
    return CUDA_SUCCESS;
}

/* A process does not open its own memory: NVIDIA's driver refuses that too. */
static bool is_own(const struct sim_share_ticket *ticket) {
    struct sim_share_ticket own;
    struct sim_range *range = sim_range_from(&sim_ranges, ticket->address);
    bool is_shared = range != NULL && range->kind == SIM_DEVICE && range->source != NULL;
    return is_shared && sim_share(range, &own) == CUDA_SUCCESS && strcmp(own.name, ticket->name) == 0;
}

SIM_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    SIM_ENTER_CONTEXT(context);
    struct sim_share_ticket ticket;
    struct sim_range *range;
    if (address == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&ticket, &handle, sizeof(ticket));
    SIM_LOCKED();
    if (is_own(&ticket)) return CUDA_ERROR_INVALID_CONTEXT;
    SIM_TRY(sim_share_open(&ticket, &range));
    range->context = context;
    *address = range->start;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

SIM_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_LOCKED();
    struct sim_range *range = sim_range_from(&sim_ranges, address);
    if (range == NULL || range->kind != SIM_IMPORTED || range->source == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    sim_share_close(range);
    return CUDA_SUCCESS;
}
