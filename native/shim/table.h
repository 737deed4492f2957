/* The driver's functions as cuGetProcAddress knows them: by name, version and stream variant. */
#ifndef PGPU_SHIM_TABLE_H
#define PGPU_SHIM_TABLE_H

#include "functions.h"

/* The ELF symbol, such as `cuMemAlloc_v2`. */
const char *pgpu_table_symbol(enum pgpu_function function);

/* What to hand out where the real driver handed out `real` for these words: the hook, or `real` itself. NULL
 * where it is a version, newer than this table, of a function that has a hook: what it takes and whom it
 * charges nobody here knows. */
void *pgpu_table_wrap(const char *name, int cuda_version, cuuint64_t flags, void *real);

#endif
