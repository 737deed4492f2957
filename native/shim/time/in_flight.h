/* What this process has in flight, published in its slot of the usage file for the host: a job is quiet once
 * each of its living processes is.
 *
 * A launch publishes before it checks whether its job is held, and the host holds a job before it reads the
 * slots (both sequentially consistent): so either the launch sees the hold or the host sees the launch. */
#ifndef PGPU_SHIM_IN_FLIGHT_H
#define PGPU_SHIM_IN_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

/* From here until pgpu_in_flight_leave a launch or a copy is on its way to the driver. */
void pgpu_in_flight_enter(int gpu, uint64_t now_ns);
void pgpu_in_flight_leave(int gpu);

/* What is in flight should last until then. */
void pgpu_in_flight_expect(int gpu, uint64_t until_ns);

/* What was launched before is on the board up to then. */
void pgpu_in_flight_note_done(int gpu, uint64_t until_ns);

/* Publish that nothing is in flight any more, if that is so; true if it was. */
bool pgpu_in_flight_settle(int gpu, uint64_t now_ns);

/* Publish on the board that this process has work for the GPU. */
void pgpu_in_flight_publish_demand(int gpu, uint64_t now_ns);

/* Whether no other process of the job has had something to launch or in flight lately, on any GPU. */
bool pgpu_in_flight_is_by_us(uint64_t now_ns);

/* A batch of some thread was opened, or closed: put among those that wait to be read, or dropped. */
void pgpu_in_flight_open_batch(int gpu);
void pgpu_in_flight_close_batch(int gpu);

/* Work is about to be launched: where none was in flight, the neighbours' part of the time begins anew. */
void pgpu_in_flight_begin(int gpu, uint64_t now_ns);

/* A launch, or a copy, of about this cost was accepted by the driver. */
void pgpu_in_flight_add(int gpu, uint64_t now_ns, uint64_t cost_ns);
void pgpu_in_flight_add_copy(int gpu, uint64_t now_ns, uint64_t cost_ns);

void pgpu_in_flight_after_fork_in_child(void);

#endif
