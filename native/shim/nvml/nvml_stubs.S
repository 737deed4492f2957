/* The exports that the NVML shim does not change: each jumps to the real library's function with its arguments
 * untouched. Before nvmlInit the slot is empty, and the answer is NVML_ERROR_UNINITIALIZED. */
#include "nvml/nvml_hooks.h"

#if defined(__x86_64__)
#define STUB(symbol)                                                                                         \
    .globl symbol;                                                                                           \
    .type symbol, @function;                                                                                 \
    .p2align 4;                                                                                              \
    symbol: endbr64;                                                                                         \
    movq pgpu_nvml_real_##symbol(%rip), %r11;                                                                \
    testq %r11, %r11;                                                                                        \
    je pgpu_nvml_uninitialised;                                                                              \
    jmp *%r11;                                                                                               \
    .size symbol, . - symbol;
#elif defined(__aarch64__)
#define STUB(symbol)                                                                                         \
    .globl symbol;                                                                                           \
    .type symbol, %function;                                                                                 \
    .p2align 4;                                                                                              \
    symbol: hint #34;                                                                                        \
    adrp x16, pgpu_nvml_real_##symbol;                                                                       \
    ldr x16, [x16, :lo12:pgpu_nvml_real_##symbol];                                                           \
    cbz x16, 1f;                                                                                             \
    br x16;                                                                                                  \
    1: b pgpu_nvml_uninitialised;                                                                            \
    .size symbol, . - symbol;
#else
#error "the shim is written for x86-64 and aarch64"
#endif

#define WRITTEN_IN_C(symbol)

    .text
    .globl pgpu_nvml_uninitialised
    .hidden pgpu_nvml_uninitialised
#if defined(__x86_64__)
    .type pgpu_nvml_uninitialised, @function
pgpu_nvml_uninitialised:
    endbr64
    movl $1, %eax /* NVML_ERROR_UNINITIALIZED */
    ret
#else
    .type pgpu_nvml_uninitialised, %function
pgpu_nvml_uninitialised:
    mov w0, #1 /* NVML_ERROR_UNINITIALIZED */
    ret
#endif
    .size pgpu_nvml_uninitialised, . - pgpu_nvml_uninitialised

#define NVML_FUNCTION(symbol) PGPU_IF_HOOKED(symbol, WRITTEN_IN_C, STUB)(symbol)
#include "nvml_functions.def"
#undef NVML_FUNCTION

    .bss
    .p2align 6
    .globl pgpu_nvml_real
    .hidden pgpu_nvml_real
pgpu_nvml_real:
#define NVML_FUNCTION(symbol) pgpu_nvml_real_##symbol: .zero 8;
#include "nvml_functions.def"
#undef NVML_FUNCTION

    .section .note.GNU-stack, "", %progbits
