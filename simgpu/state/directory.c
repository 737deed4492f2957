/* The path of the shared state, and its files opened with permissions for all users. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state/state.h"

static bool is_directory(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static bool copy(char path[SIM_PATH_BYTES], const char *text) {
    return (size_t)snprintf(path, SIM_PATH_BYTES, "%s", text) < SIM_PATH_BYTES;
}

static bool beside_own_file(char path[SIM_PATH_BYTES]) {
    Dl_info info;
    if (dladdr((const void *)&sim_state_directory, &info) == 0 || info.dli_fname == NULL) return false;
    const char *slash = strrchr(info.dli_fname, '/');
    int folder_length = slash == NULL ? 1 : (int)(slash - info.dli_fname);
    const char *folder = slash == NULL ? "." : info.dli_fname;
    return (size_t)snprintf(path, SIM_PATH_BYTES, "%.*s/../simgpu", folder_length, folder) < SIM_PATH_BYTES;
}

bool sim_state_directory(char path[SIM_PATH_BYTES]) {
    if (is_directory("/.pgpu/simgpu")) return copy(path, "/.pgpu/simgpu");
    const char *named = getenv("PGPU_SIMGPU_DIR");
    if (named != NULL && *named != '\0') return copy(path, named);
    return beside_own_file(path) && is_directory(path);
}

bool sim_state_path(const char *directory, const char *name, char path[SIM_PATH_BYTES]) {
    return (size_t)snprintf(path, SIM_PATH_BYTES, "%s/%s", directory, name) < SIM_PATH_BYTES;
}

static bool is_grown(int fd, size_t size_bytes) {
    struct stat status;
    if (fstat(fd, &status) != 0) return false;
    return status.st_size >= (off_t)size_bytes || ftruncate(fd, (off_t)size_bytes) == 0;
}

int sim_shared_open(const char *directory, const char *name, size_t size_bytes) {
    char path[SIM_PATH_BYTES];
    if (!sim_state_path(directory, name, path)) return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd < 0) return -1;
    /* The umask may have taken bits away; only the file's owner can give them back, and need not twice. */
    fchmod(fd, 0666);
    if (is_grown(fd, size_bytes)) return fd;
    close(fd);
    return -1;
}
