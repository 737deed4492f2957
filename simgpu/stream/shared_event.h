/* Events that several processes record and wait for. Their latest recordings lie in a file of the state
 * directory: the process that made each, and how much of the device that process will have used by then. From
 * the activity file every process can compute whether that moment has come; after a recorder's death its
 * recordings count as passed. */
#ifndef SIM_SHARED_EVENT_H
#define SIM_SHARED_EVENT_H

#include <stdbool.h>
#include <stdint.h>

/* Stands for the recording that is the last at the time of the call. */
#define SIM_LAST_RECORDING UINT64_MAX

struct sim_shared_event;

/* For an event that may be shared, from its beginning on, so that no recording is missed; NULL: the state
 * directory cannot be written. Under sim_lock. */
struct sim_shared_event *sim_shared_event_new(void);
/* The number of the last recording; 0: there is none. */
uint64_t sim_shared_event_last(const struct sim_shared_event *event);
/* Begin a recording whose moment is still unknown, since it waits behind a host function; returns its number.
 */
uint64_t sim_shared_event_announce(struct sim_shared_event *event);
/* Set the moment of an announced recording, or of a new one where `recording` is 0. */
void sim_shared_event_record(struct sim_shared_event *event, uint64_t recording, unsigned gpu,
                             uint64_t at_ns);
bool sim_shared_event_is_over(const struct sim_shared_event *event, uint64_t recording);
/* Sleep until the last recording is over. Not under sim_lock. */
void sim_shared_event_wait(const struct sim_shared_event *event);
void sim_shared_event_close(struct sim_shared_event *event);

#endif
