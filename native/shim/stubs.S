/* The exports that the shim does not change: each jumps to the real driver's function with its arguments untouched.
 * The first call of a process finds the slot empty and loads the real driver. */
#include "hooks.h"

#if defined(__x86_64__)
#define STUB(symbol)                                                                                         \
    .globl symbol;                                                                                           \
    .type symbol, @function;                                                                                 \
    .p2align 4;                                                                                              \
    symbol: endbr64;                                                                                         \
    movq pgpu_real_##symbol(%rip), %r11;                                                                     \
    testq %r11, %r11;                                                                                        \
    je 1f;                                                                                                   \
    jmp *%r11;                                                                                               \
    1: leaq pgpu_real_##symbol(%rip), %r11;                                                                  \
    jmp pgpu_stub_first_call;                                                                                \
    .size symbol, . - symbol;
#elif defined(__aarch64__)
#define STUB(symbol)                                                                                         \
    .globl symbol;                                                                                           \
    .type symbol, %function;                                                                                 \
    .p2align 4;                                                                                              \
    symbol: hint #34;                                                                                        \
    adrp x16, pgpu_real_##symbol;                                                                            \
    add x17, x16, :lo12:pgpu_real_##symbol;                                                                  \
    ldr x16, [x17];                                                                                          \
    cbz x16, 1f;                                                                                             \
    br x16;                                                                                                  \
    1: b pgpu_stub_first_call;                                                                               \
    .size symbol, . - symbol;
#else
#error "the shim is written for x86-64 and aarch64"
#endif

#define WRITTEN_IN_C(symbol)

    .text
#define CUDA_FUNCTION(symbol, name, version, variant, class) PGPU_IF_HOOKED(symbol, WRITTEN_IN_C, STUB)(symbol)
#include "cuda_functions.def"
#undef CUDA_FUNCTION

    .hidden pgpu_resolve_slot
#if defined(__x86_64__)
    .type pgpu_stub_first_call, @function
pgpu_stub_first_call: /* %r11: the empty slot */
    pushq %rbp
    movq %rsp, %rbp
    subq $192, %rsp
    andq $-16, %rsp
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    movq %r11, %rdi
    call pgpu_resolve_slot
    movq %rax, %r11
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movups 64(%rsp), %xmm0
    movups 80(%rsp), %xmm1
    movups 96(%rsp), %xmm2
    movups 112(%rsp), %xmm3
    movups 128(%rsp), %xmm4
    movups 144(%rsp), %xmm5
    movups 160(%rsp), %xmm6
    movups 176(%rsp), %xmm7
    movq %rbp, %rsp
    popq %rbp
    jmp *%r11
    .size pgpu_stub_first_call, . - pgpu_stub_first_call
#else
    .type pgpu_stub_first_call, %function
pgpu_stub_first_call: /* x17: the empty slot */
    stp x29, x30, [sp, #-224]!
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov x0, x17
    bl pgpu_resolve_slot
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    br x16
    .size pgpu_stub_first_call, . - pgpu_stub_first_call
#endif

    .bss
    .p2align 6
    .globl pgpu_real
    .hidden pgpu_real
pgpu_real:
#define CUDA_FUNCTION(symbol, name, version, variant, class) pgpu_real_##symbol: .zero 8;
#include "cuda_functions.def"
#undef CUDA_FUNCTION

    .section .note.GNU-stack, "", %progbits
