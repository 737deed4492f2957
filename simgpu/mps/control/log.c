#include "mps/control/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static FILE *file;
static const char *own_role;

bool mps_log_open(const char *name, const char *role) {
    char path[256];
    const char *named = getenv("CUDA_MPS_LOG_DIRECTORY");
    const char *directory = named != NULL && *named != '\0' ? named : "/var/log/nvidia-mps";
    mkdir(directory, 0755);
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", directory, name) >= sizeof(path)) return false;
    own_role = role;
    file = fopen(path, "ae");
    return file != NULL;
}

void mps_log(const char *format, ...) {
    struct timespec now;
    struct tm parts;
    char when[32];
    va_list arguments;
    if (file == NULL) return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &parts);
    fprintf(file, "[%s.%03ld %s %5d] ", when, now.tv_nsec / 1000000, own_role, (int)getpid());
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fputc('\n', file);
    fflush(file);
}
