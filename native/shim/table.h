/* The driver's functions as cuGetProcAddress knows them: by name, version and stream variant. */
#ifndef PGPU_SHIM_TABLE_H
#define PGPU_SHIM_TABLE_H

#include "functions.h"

/* The ELF symbol, such as `cuMemAlloc_v2`. */
const char *pgpu_table_symbol(enum pgpu_function function);

/* What a program asked cuGetProcAddress for, and what the real driver handed out. */
struct pgpu_question {
    const char *name;
    int cuda_version;
    cuuint64_t flags;
    void *answer;
    /* The same call again, for another version; NULL where there is none. */
    void *(*ask_driver)(const char *name, int cuda_version, cuuint64_t flags);
};

/* What to hand out: the hook, or the driver's answer itself. NULL where that is a version, newer than this
 * table, of a function that has a hook: what it takes and whom it charges nobody here knows. */
void *pgpu_table_wrap(const struct pgpu_question *question);

#endif
