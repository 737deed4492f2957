/* The one account of turns, in the file `turns` that all drivers map, and the lock on it.
 *
 * A holder changes it for microseconds. The lock of a killed holder is taken over at once, that of a stopped
 * one after about half a second: then the account may be wrong by what it was about to write. */
#ifndef SIM_TURN_ACCOUNT_H
#define SIM_TURN_ACCOUNT_H

#include "time/turns.h"

/* Map the file; false: it cannot be. The slot must be ours. */
bool sim_turn_account_start(const char *directory);

/* Hold a GPU's account, carried on to now; the dead have no work in it. */
struct sim_turns *sim_turn_account_enter(unsigned gpu, uint64_t now_ns);
void sim_turn_account_leave(unsigned gpu);

/* The account as it is, for a glance. */
const struct sim_turns *sim_turn_account_glance(unsigned gpu);

#endif
