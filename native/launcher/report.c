#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

_Noreturn void give_up(const char *stage, const char *detail) {
    const int error = errno;
    if (dprintf(REPORT_FD, "%d\t%s\t%s\n", error, stage, detail) < 0)
        dprintf(STDERR_FILENO, "pgpu-launch: %s: %s: %s\n", stage, detail, strerror(error));
    _exit(125);
}
