/* The one program of the musl test image: prints that it runs, and what a CUDA client would find there. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = cuda ? (int (*)(unsigned))dlsym(cuda, "cuInit") : NULL;
    printf("alive\n");
    if (init)
        printf("cuInit %d\n", init(0));
    else
        printf("no CUDA\n");
    return 0;
}
