/* Events that several processes record and wait for. How the last recordings stand lies in a file of the
 * state directory: who made each, and how much of the device that process will have used by then. Everybody
 * can tell from the activity file whether that moment has come; a dead recorder holds nobody up. */
#ifndef SIM_SHARED_EVENT_H
#define SIM_SHARED_EVENT_H

#include <stdbool.h>
#include <stdint.h>

/* Stands for whichever recording is the last when asked. */
#define SIM_LAST_RECORDING UINT64_MAX

struct sim_shared_event;

/* For an event that may be shared, from its beginning on, so that no recording is missed; NULL: the state
 * directory cannot be written. Under sim_lock. */
struct sim_shared_event *sim_shared_event_new(void);
/* The number of the last recording; 0: there is none. */
uint64_t sim_shared_event_last(const struct sim_shared_event *event);
/* Begin a recording whose moment is not known yet, since it waits behind a host function; its number. */
uint64_t sim_shared_event_announce(struct sim_shared_event *event);
/* Say when an announced recording comes, or a new one where `recording` is 0. */
void sim_shared_event_record(struct sim_shared_event *event, uint64_t recording, unsigned gpu,
                             uint64_t at_ns);
bool sim_shared_event_is_over(const struct sim_shared_event *event, uint64_t recording);
/* Sleep until the last recording is over. Not under sim_lock. */
void sim_shared_event_wait(const struct sim_shared_event *event);
void sim_shared_event_close(struct sim_shared_event *event);

#endif
