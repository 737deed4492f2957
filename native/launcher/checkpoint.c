/* pgpu-checkpoint: makes one call of the CUDA driver for another process's checkpoint, in a process of its
 * own: a driver that hangs or crashes ends nothing else.
 *
 *     pgpu-checkpoint LIBRARY offers
 *         whether the driver has these calls, and its version of CUDA
 *     pgpu-checkpoint LIBRARY state|lock|checkpoint|restore|unlock PID [TIMEOUT_MS]
 *
 * Prints the driver's result and, for `state` and `offers`, the value: `RESULT [VALUE]`. Exit code 0: the
 * driver was called; 1: no library or no such symbol; 2: wrong usage. It ends when its parent does. The few
 * declarations are written here: every argument of these calls is 64 bytes that are zero but for the named
 * fields. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct arguments {
    unsigned timeout_ms; /* of a lock */
    unsigned reserved[15];
};

static void *library;

static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    if (found != NULL) return found;
    printf("missing %s\n", name);
    exit(1);
}

static int offers(void) {
    int (*get)(int *) = (int (*)(int *))symbol("cuDriverGetVersion");
    int version = 0;
    symbol("cuCheckpointProcessLock");
    int result = get(&version);
    printf("%d %d\n", result, version);
    return 0;
}

static int state(int pid) {
    int (*get)(int, int *) = (int (*)(int, int *))symbol("cuCheckpointProcessGetState");
    int found = -1;
    int result = get(pid, &found);
    printf("%d %d\n", result, found);
    return 0;
}

static int take(const char *name, int pid, unsigned timeout_ms) {
    int (*step)(int, struct arguments *) = (int (*)(int, struct arguments *))symbol(name);
    struct arguments arguments = {.timeout_ms = timeout_ms};
    printf("%d\n", step(pid, &arguments));
    return 0;
}

/* Without persistence mode the driver may have shut the GPU down since the last process left it. */
static int restore(int pid) {
    int (*init)(unsigned) = (int (*)(unsigned))symbol("cuInit");
    int result = init(0);
    if (result == 0) return take("cuCheckpointProcessRestore", pid, 0);
    printf("%d\n", result);
    return 0;
}

static int use(void) {
    fputs("usage: pgpu-checkpoint LIBRARY offers | state|lock|checkpoint|restore|unlock PID [TIMEOUT_MS]\n",
          stderr);
    return 2;
}

static int follow(const char *word, int pid, unsigned timeout_ms) {
    if (strcmp(word, "state") == 0) return state(pid);
    if (strcmp(word, "lock") == 0) return take("cuCheckpointProcessLock", pid, timeout_ms);
    if (strcmp(word, "checkpoint") == 0) return take("cuCheckpointProcessCheckpoint", pid, 0);
    if (strcmp(word, "restore") == 0) return restore(pid);
    if (strcmp(word, "unlock") == 0) return take("cuCheckpointProcessUnlock", pid, 0);
    return use();
}

int main(int count, char **words) {
    if (count < 3) return use();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    library = dlopen(words[1], RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        printf("missing %s\n", dlerror());
        return 1;
    }
    if (strcmp(words[2], "offers") == 0) return offers();
    if (count < 4) return use();
    return follow(words[2], atoi(words[3]), count > 4 ? (unsigned)strtoul(words[4], NULL, 10) : 0);
}
