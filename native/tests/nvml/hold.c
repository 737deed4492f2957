/* nvml-hold USAGE_FILE GPU BYTES [GPU BYTES …]: hold bytes in a usage file as a CUDA program's shim or driver
 * does, report that on stdout, and go on until stdin ends. With PGPU_HOLD_IN_PID_NAMESPACE a child in a new
 * PID namespace holds them. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meter.h"

static struct pgpu_meter meter = PGPU_METER_INIT;

static int enter_pid_namespace(void) {
    if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
        perror("unshare");
        exit(77);
    }
    pid_t child = fork();
    if (child == 0) return 0;
    int status;
    waitpid(child, &status, 0);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static int hold(int count, char **words) {
    for (int i = 0; i + 1 < count; i += 2) {
        unsigned gpu = (unsigned)atoi(words[i]);
        if (pgpu_meter_reserve(&meter, gpu, strtoull(words[i + 1], NULL, 10), UINT64_MAX, NULL) !=
            PGPU_METER_OK)
            return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    if (getenv("PGPU_HOLD_IN_PID_NAMESPACE") != NULL) enter_pid_namespace();
    FILE *file = fopen(argv[1], "a");
    if (file == NULL) return 1;
    fclose(file);
    enum pgpu_meter_status status = pgpu_meter_claim(&meter, argv[1], PGPU_MAX_GPUS);
    if (status != PGPU_METER_OK) {
        fprintf(stderr, "%s\n", pgpu_meter_explain(status));
        return 1;
    }
    if (hold(argc - 2, argv + 2) != 0) return 1;
    printf("%d\n", (int)getpid());
    fflush(stdout);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        continue;
    return 0;
}
