/* A program that opens the driver itself, in the way that its first argument names:
 *
 *   interception-opening WAY BYTES [PATH]
 *
 * dlsym, unversioned, absolute PATH, deepbind, deepbind-plugin PATH, dlmopen, proc-address, cudart PATH,
 * fork, spawn. */
#include <dlfcn.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attempt.h"

#define LIBRARY        "libcuda.so.1"
#define NEWEST_VERSION 12000

extern char **environ;

static void try_handle(void *library, size_t bytes) {
    if (library == NULL)
        printf("missing %s\n", dlerror());
    else
        attempt(find_by_dlsym, library, bytes);
}

typedef int (*get_proc_address)(const char *, void **, int, uint64_t, int *);

/* As the CUDA runtime does: one symbol by dlsym, everything else from it, by names without version suffix. */
static void *find_by_proc_address(void *context, const char *name) {
    get_proc_address ask = (get_proc_address)dlsym(context, "cuGetProcAddress_v2");
    char plain[64];
    snprintf(plain, sizeof plain, "%.*s", (int)strcspn(name, "_"), name);
    void *found = NULL;
    int status;
    return ask != NULL && ask(plain, &found, NEWEST_VERSION, 0, &status) == 0 ? found : NULL;
}

static void try_proc_address(size_t bytes) {
    void *library = dlopen(LIBRARY, RTLD_NOW);
    if (library == NULL)
        printf("missing %s\n", dlerror());
    else
        attempt(find_by_proc_address, library, bytes);
}

static void try_plugin(const char *path, size_t bytes) {
    void *plugin = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
    void (*run)(size_t) = plugin != NULL ? (void (*)(size_t))dlsym(plugin, "run_plugin") : NULL;
    if (run == NULL)
        printf("missing %s\n", dlerror());
    else
        run(bytes);
}

/* The CUDA runtime makes its context by itself; its cudaErrorMemoryAllocation is 2 as well. */
static void try_runtime(const char *path, size_t bytes) {
    void *runtime = dlopen(path, RTLD_NOW);
    int (*take)(void **, size_t) =
        runtime != NULL ? (int (*)(void **, size_t))dlsym(runtime, "cudaMalloc") : NULL;
    void *pointer;
    if (take == NULL)
        printf("missing %s\n", dlerror());
    else
        printf("allocate %d\n", take(&pointer, bytes));
}

static void try_in_fork(size_t bytes) {
    const pid_t child = fork();
    if (child == 0) {
        try_handle(dlopen(LIBRARY, RTLD_NOW), bytes);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static void try_in_spawned(char **arguments) {
    char *words[] = {arguments[0], "dlsym", arguments[2], NULL};
    pid_t child;
    if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ) != 0)
        puts("missing a child");
    else
        waitpid(child, NULL, 0);
}

static int is_way(char **arguments, const char *way) {
    return strcmp(arguments[1], way) == 0;
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    const size_t bytes = strtoull(arguments[2], NULL, 10);
    if (is_way(arguments, "dlsym"))
        try_handle(dlopen(LIBRARY, RTLD_NOW), bytes);
    else if (is_way(arguments, "unversioned"))
        try_handle(dlopen("libcuda.so", RTLD_NOW), bytes);
    else if (is_way(arguments, "absolute") && count > 3)
        try_handle(dlopen(arguments[3], RTLD_NOW), bytes);
    else if (is_way(arguments, "deepbind"))
        try_handle(dlopen(LIBRARY, RTLD_NOW | RTLD_DEEPBIND), bytes);
    else if (is_way(arguments, "deepbind-plugin") && count > 3)
        try_plugin(arguments[3], bytes);
    else if (is_way(arguments, "dlmopen"))
        try_handle(dlmopen(LM_ID_NEWLM, LIBRARY, RTLD_NOW), bytes);
    else if (is_way(arguments, "proc-address"))
        try_proc_address(bytes);
    else if (is_way(arguments, "cudart") && count > 3)
        try_runtime(arguments[3], bytes);
    else if (is_way(arguments, "fork"))
        try_in_fork(bytes);
    else if (is_way(arguments, "spawn"))
        try_in_spawned(arguments);
    else
        return 2;
    return 0;
}
