/* System calls and the start of a program that is linked with no C library. */
#ifndef PGPU_BARE_SYSTEM_H
#define PGPU_BARE_SYSTEM_H

#include <stddef.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
static inline long call6(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#define ENTRY                                                                                                \
    __asm__(".globl _start\n_start:\n xor %ebp,%ebp\n mov %rsp,%rdi\n and $-16,%rsp\n call begin\n hlt\n")
#elif defined(__aarch64__)
static inline long call6(long number, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#define ENTRY __asm__(".globl _start\n_start:\n mov x29,#0\n mov x30,#0\n mov x0,sp\n bl begin\n brk #1\n")
#else
#error "this machine's system calls are not known here"
#endif

#define CALL(number, a, b, c, d) call6((number), (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)

static inline _Noreturn void leave(int code) {
    for (;;)
        CALL(__NR_exit_group, code, 0, 0, 0);
}

static inline long read_some(int descriptor, char *buffer, size_t length) {
    return CALL(__NR_read, descriptor, buffer, length, 0);
}

static inline void write_all(int descriptor, const char *text, size_t length) {
    while (length > 0) {
        const long wrote = CALL(__NR_write, descriptor, text, length, 0);
        if (wrote <= 0) return; /* the reader may be gone, which must not stop the program */
        text += wrote;
        length -= (size_t)wrote;
    }
}

#endif
