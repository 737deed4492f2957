/* Functions that were looked up and not launched yet. The driver may load their code, and the variables of
 * their library, with the first launch: then they are charged, past the slice if need be, since a launch
 * cannot be undone. Later launches are not looked at. */
#ifndef PGPU_SHIM_FIRST_LAUNCHES_H
#define PGPU_SHIM_FIRST_LAUNCHES_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* A function or kernel was returned to the program; `owner` is its module or library. False: not for the
 * first time. */
bool pgpu_first_launches_add(CUfunction function, uint64_t owner);

/* Whether a launch of it would be the first. */
bool pgpu_first_launches_has(CUfunction function);

/* It was launched: charge what that loaded. */
void pgpu_first_launches_finish(CUfunction function);

/* Its module or library was unloaded. */
void pgpu_first_launches_forget(uint64_t owner);

#endif
