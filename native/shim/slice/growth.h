/* Growth of the slice while the job runs, where pgpu chose its size (PGPU_LIMIT_GROWS).
 *
 * An allocation that does not fit leaves a wish in the usage file, rings its bell, and polls the limit file
 * until it fits or the host's answer is final. The host may let it wait: it then confirms that each second. A
 * host that is silent for as long as an agent may take to be started again has refused. */
#ifndef PGPU_SHIM_GROWTH_H
#define PGPU_SHIM_GROWTH_H

#include <stdbool.h>
#include <stdint.h>

enum pgpu_growth {
    PGPU_GROWTH_IS_LARGER,     /* the bytes may fit now */
    PGPU_GROWTH_IS_NOT,        /* they do not, and will not */
    PGPU_GROWTH_AFTER_FREEING, /* the program can free memory that it only caches, and will ask again */
};

/* Wish for a slice with `bytes` more than is held, and await the answer; may take minutes if `may_wait`. */
enum pgpu_growth pgpu_growth_wish(unsigned gpu, uint64_t bytes, bool may_wait);

/* Free memory was shown; memory was reserved by this thread. A process that holds none, and then takes half
 * or more of what it was shown, takes what it sees (`sizes_itself`). */
void pgpu_growth_note_shown(unsigned gpu, uint64_t free_bytes);
void pgpu_growth_note_taken(unsigned gpu);

#endif
