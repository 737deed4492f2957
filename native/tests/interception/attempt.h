/* One attempt to allocate past a slice, with the driver's functions found in some way. */
#ifndef PGPU_TESTS_ATTEMPT_H
#define PGPU_TESTS_ATTEMPT_H

#include <stddef.h>

/* How a client finds a function by name; `context` is the client's own. */
typedef void *(*find_function)(void *context, const char *name);

/* Print "allocate RESULT" (0: the slice was passed; 2: held), or the step that failed. */
void attempt(find_function find, void *context, size_t bytes);

/* The way most clients go: dlsym. `context` is a handle of dlopen. */
void *find_by_dlsym(void *context, const char *name);

#endif
