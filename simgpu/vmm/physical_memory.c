/* Files behind physical memory, so that one piece of it can appear at several addresses. All that is never
 * exported lies in one file of the process: a descriptor for each would soon exhaust them. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/vmm.h"

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#endif
/* Out of the way of programs that expect the lowest descriptors. */
#define QUIET_DESCRIPTOR 500

struct sim_slab sim_physicals = SIM_SLAB(struct sim_physical, 256, 1u << 20);

static struct {
    int fd; /* 0: not made yet */
    uint64_t next_offset;
} process_file;

static int make_file(const char *name) {
    /* The C libraries that the wheel serves have the call without its wrapper. */
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC);
    if (fd < 0) return -1;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, QUIET_DESCRIPTOR);
    if (moved < 0) return fd;
    close(fd);
    return moved;
}

static bool has_room(size_t bytes) {
    return process_file.fd > 0 && ftruncate(process_file.fd, (off_t)(process_file.next_offset + bytes)) == 0;
}

/* A program that closes every descriptor closes ours too: then begin a new file. */
static bool back_in_process_file(struct sim_physical *physical) {
    if (!has_room(physical->bytes)) {
        process_file.fd = make_file("simgpu");
        process_file.next_offset = 0;
        if (!has_room(physical->bytes)) return false;
    }
    physical->file = process_file.fd;
    physical->file_offset = process_file.next_offset;
    process_file.next_offset += physical->bytes;
    return true;
}

/* The file's name contains its GPU for an importer. */
static bool back_in_own_file(struct sim_physical *physical) {
    char name[64];
    snprintf(name, sizeof(name), "simgpu-%u-%zu", physical->gpu, physical->bytes);
    physical->file = make_file(name);
    physical->owns_file = true;
    return physical->file >= 0 && ftruncate(physical->file, (off_t)physical->bytes) == 0;
}

bool sim_physical_back(struct sim_physical *physical, bool wants_own_file) {
    physical->file = -1;
    if (wants_own_file) return back_in_own_file(physical);
    return !sim_driver.has_backing || back_in_process_file(physical);
}

void sim_physical_unback(struct sim_physical *physical) {
    if (physical->file < 0) return;
    if (physical->owns_file)
        close(physical->file);
    else
        fallocate(physical->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)physical->file_offset,
                  (off_t)physical->bytes);
}

bool sim_physical_map(const struct sim_physical *physical, uintptr_t at, size_t bytes, size_t offset) {
    if (!sim_driver.has_backing) return true;
    if (physical->team_size > 0) return sim_multicast_map(physical, at, bytes, offset);
    void *mapped = mmap((void *)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical->file,
                        (off_t)(physical->file_offset + offset));
    return mapped != MAP_FAILED;
}

void sim_address_clear(uintptr_t at, size_t bytes) {
    if (!sim_driver.has_backing) return;
    mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

CUresult sim_physical_new(const CUmemAllocationProp *properties, size_t bytes, struct sim_physical **made) {
    struct sim_physical *physical = sim_new(&sim_physicals);
    if (physical == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    physical->is_on_host = properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    physical->device = physical->is_on_host ? 0 : properties->location.id;
    physical->gpu = sim_driver.gpu_of_device[physical->device];
    physical->bytes = bytes;
    physical->properties = *properties;
    physical->handle_count = 1;
    bool wants_own_file = (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    if (!sim_physical_back(physical, wants_own_file)) {
        sim_delete(&sim_physicals, physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = physical;
    return CUDA_SUCCESS;
}

void sim_physical_settle(struct sim_physical *physical) {
    if (physical->handle_count > 0 || physical->mapping_count > 0) return;
    bool is_charged = !physical->is_on_host && !physical->is_imported && physical->team_size == 0;
    sim_multicast_end(physical);
    unsigned gpu = physical->gpu;
    size_t bytes = physical->bytes;
    sim_physical_unback(physical);
    sim_delete(&sim_physicals, physical);
    if (is_charged) sim_device_refund(gpu, bytes);
}
