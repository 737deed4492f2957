/* pgpu-probe: a minimal CUDA client, which tests a limit and measures a context in a process of its own.
 *
 *     pgpu-probe allocate BYTES [LIBRARY]
 *         make a context, allocate BYTES, print the driver's result of each step
 *     pgpu-probe hold [LIBRARY]
 *         make a context on the first visible GPU, print the `multiprocessors` that this process may use,
 * whether it is a client of `mps`, whether the GPU is `integrated` (its memory is the machine's), and
 * "ready"; wait for end of input
 *
 * Prints one line for each step: NAME RESULT. Exit code 0: every call was made; 1: no library or no such
 * symbol; 2: wrong usage. The few declarations are written here: the driver's ABI for these calls is fixed.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libcuda.so.1"

static void *library;

static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        printf("missing %s\n", name);
        exit(1);
    }
    return found;
}

static int report(const char *step, int result) {
    printf("%s %d\n", step, result);
    fflush(stdout);
    return result;
}

static int make_context(void) {
    int (*init)(unsigned) = (int (*)(unsigned))symbol("cuInit");
    int (*get)(int *, int) = (int (*)(int *, int))symbol("cuDeviceGet");
    int (*retain)(void **, int) = (int (*)(void **, int))symbol("cuDevicePrimaryCtxRetain");
    int (*set)(void *) = (int (*)(void *))symbol("cuCtxSetCurrent");
    int device;
    void *context;
    int result = report("init", init(0));
    if (result == 0) result = report("device", get(&device, 0));
    if (result == 0) result = report("context", retain(&context, device));
    return result == 0 ? set(context) : result;
}

static void allocate(size_t bytes) {
    int (*take)(unsigned long long *, size_t) =
        (int (*)(unsigned long long *, size_t))symbol("cuMemAlloc_v2");
    unsigned long long pointer;
    report("allocate", take(&pointer, bytes));
}

/* -1 where the driver does not have the attribute. */
static int attribute(int number) {
    int (*get)(int *, int, int) = (int (*)(int *, int, int))symbol("cuDeviceGetAttribute");
    int value;
    return get(&value, number, 0) == 0 ? value : -1;
}

static void hold(void) {
    char byte;
    report("multiprocessors", attribute(16));
    report("mps", attribute(133));
    report("integrated", attribute(18));
    puts("ready");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
}

static int use(void) {
    fputs("usage: pgpu-probe allocate BYTES [LIBRARY] | hold [LIBRARY]\n", stderr);
    return 2;
}

int main(int count, char **arguments) {
    const int is_allocation = count >= 3 && strcmp(arguments[1], "allocate") == 0;
    if (!is_allocation && (count < 2 || strcmp(arguments[1], "hold") != 0)) return use();
    const int at = is_allocation ? 3 : 2;
    library = dlopen(count > at ? arguments[at] : LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        printf("missing %s\n", dlerror());
        return 1;
    }
    if (make_context() != 0) return 0;
    if (is_allocation)
        allocate(strtoull(arguments[2], NULL, 10));
    else
        hold();
    return 0;
}
