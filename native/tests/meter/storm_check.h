/* Comparing the meter with the book while every worker rests. */
#ifndef PGPU_STORM_CHECK_H
#define PGPU_STORM_CHECK_H

#include <stdbool.h>

#include "storm.h"

/* Let all workers rest, compare, kill the forked survivors of dead workers, compare again, and go on. False,
 * with a line on stderr, if the meter is wrong. */
bool storm_quiesce(const char *usage_path, unsigned workers);

/* Kill the forked children of dead workers and wait until they are gone. */
void storm_end_survivors(unsigned workers);

/* Run storm_reap in a child and wait for it. */
bool storm_reap_in_child(const char *usage_path);

#endif
