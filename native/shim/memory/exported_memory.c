/* Exported memory lives as long as its descriptor, in whichever process that is.
 *
 * The driver ties an export to an open file of its control device. A lock on one byte of our own choice,
 * taken through this open file description, is released when its last descriptor is closed, in any process:
 * the export is over when the byte is no longer locked. Where the lock cannot be taken or tested, the memory
 * stays charged until the process ends. */
#define _GNU_SOURCE
#include "memory/exported_memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cancellation.h"
#include "functions.h"
#include "slice/holdings.h"
#include "lock.h"
#include "slice/slice.h"
#include "memory/vmm.h"

/* Positive, and never past the largest offset of a file. */
#define LOCK_BYTE_MASK 0x0fffffffffffffffull

/* The control device, as found at the first export. Written once, before `is_known` is set. */
static struct {
    bool is_taken, is_known;
    char path[64];
    dev_t device;
    ino_t inode;
} control;

static bool is_control(int fd) {
    struct stat file;
    return fstat(fd, &file) == 0 && file.st_dev == control.device && file.st_ino == control.inode;
}

/* The test opens the file again by its path; only a device file with a path allows that. */
static void note_control_device(int fd) {
    struct stat file;
    char link[32];
    if (fstat(fd, &file) != 0 || !S_ISCHR(file.st_mode)) return;
    if (__atomic_exchange_n(&control.is_taken, true, __ATOMIC_SEQ_CST)) return;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, control.path, sizeof(control.path) - 1);
    if (length <= 0 || length >= (ssize_t)sizeof(control.path) - 1) return;
    control.device = file.st_dev;
    control.inode = file.st_ino;
    __atomic_store_n(&control.is_known, true, __ATOMIC_RELEASE);
}

static int open_control(void) {
    if (!__atomic_load_n(&control.is_known, __ATOMIC_ACQUIRE)) return -1;
    int fd = open(control.path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || is_control(fd)) return fd;
    close(fd);
    return -1;
}

/* The byte must be used by no other process: all processes of the machine open the same device. */
static bool choose_byte(uint64_t *byte) {
    if (syscall(SYS_getrandom, byte, sizeof(*byte), 0) != (long)sizeof(*byte)) return false;
    *byte &= LOCK_BYTE_MASK;
    return true;
}

static void note_descriptor(int fd, uint64_t allocation) {
    uint64_t byte;
    note_control_device(fd);
    if (!__atomic_load_n(&control.is_known, __ATOMIC_ACQUIRE) || !is_control(fd)) return;
    if (!choose_byte(&byte) || !pgpu_try_lock(fd, (long long)byte)) return;
    struct pgpu_holding row = {.key = byte, .allocation = allocation, .count = 1, .kind = PGPU_KIND_EXPORT};
    pgpu_holdings_put(&row);
}

/* The reference is taken before the driver is called and dropped by pgpu_exported_memory_settle only. */
PGPU_EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                                  CUmemAllocationHandleType type, unsigned long long flags) {
    uint64_t held = pgpu_vmm_hold(handle, NULL);
    pgpu_slice_forbid_checkpoint();
    CUresult result = PGPU_REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
    int fd;
    if (held != 0 && result != CUDA_SUCCESS) pgpu_vmm_drop(held);
    if (held == 0 || result != CUDA_SUCCESS || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return result;
    memcpy(&fd, shareable, sizeof(fd));
    note_descriptor(fd, held);
    return result;
}

static bool settle_row(const struct pgpu_holding *row, void *context) {
    struct pgpu_holding taken;
    if (!pgpu_is_locked(*(int *)context, (long long)row->key) &&
        pgpu_holdings_take(PGPU_KIND_EXPORT, row->key, &taken))
        pgpu_vmm_drop(taken.allocation);
    return false;
}

void pgpu_exported_memory_settle(void) {
    int before = pgpu_cancellation_defer();
    int fd = open_control();
    if (fd >= 0) {
        pgpu_holdings_visit(PGPU_KIND_EXPORT, settle_row, &fd);
        close(fd);
    }
    pgpu_cancellation_restore(before);
}

/* From here on this process keeps the charge, whichever process frees the row. */
static void keep_charge(struct pgpu_holding *memory, void *unused) {
    (void)unused;
    memory->bytes = 0;
}

/* A network card may still use such a buffer after every descriptor is closed, and no call reports that. */
static void keep_range(CUdeviceptr address, size_t bytes) {
    CUdeviceptr base = address;
    PGPU_REAL(cuMemGetAddressRange_v2)(&base, NULL, address);
    if (pgpu_holdings_edit(PGPU_KIND_MEMORY, base, keep_charge, NULL)) return;
    for (uint64_t at = address; at != 0 && at - address < bytes; at = pgpu_vmm_mapping_end(at))
        pgpu_vmm_hold_at(at, NULL);
}

PGPU_EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes,
                                                   CUmemRangeHandleType type, unsigned long long flags) {
    CUresult result = PGPU_REAL(cuMemGetHandleForAddressRange)(handle, address, bytes, type, flags);
    if (result == CUDA_SUCCESS) keep_range(address, bytes);
    return result;
}
