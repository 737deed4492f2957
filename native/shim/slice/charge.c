#include "slice/charge.h"

#include <time.h>

#include "cancellation.h"
#include "clock.h"
#include "slice/growth.h"
#include "slice/holdings.h"
#include "slice/lifecycle.h"
#include "slice/slice.h"

/* The kernel drops a dead process's locks and its driver descriptors in no fixed order. */
#define AFTER_REAP_NS 2000000000ull
#define PAUSE_NS      5000000ull

static void pause_shortly(void) {
    struct timespec pause = {.tv_nsec = PAUSE_NS};
    int before = pgpu_cancellation_defer(); /* with a reservation in hand */
    nanosleep(&pause, NULL);
    pgpu_cancellation_restore(before);
}

static bool oversubscribes(void) {
    return pgpu_limit_oversubscribes(pgpu_slice_limit());
}

static unsigned gpu_of(int index) {
    return oversubscribes() ? (unsigned)index % PGPU_MAX_PAGED_GPUS : (unsigned)index;
}

/* Whether it counts against what must stay on the device. */
static bool is_resident(int index) {
    return oversubscribes() && index < (int)PGPU_MAX_PAGED_GPUS;
}

static enum pgpu_meter_status reserve_total(unsigned gpu, uint64_t bytes) {
    return pgpu_meter_try_reserve(&pgpu_slice_meter, gpu, bytes, pgpu_limit_bytes(pgpu_slice_limit(), gpu),
                                  NULL);
}

/* `refusing` becomes the entry of the usage file that has no room. */
static enum pgpu_meter_status reserve(int index, uint64_t bytes, unsigned *refusing) {
    unsigned gpu = *refusing = gpu_of(index), entry = PGPU_RESIDENT_ENTRY(gpu);
    if (!is_resident(index)) return reserve_total(gpu, bytes);
    uint64_t resident_bytes = pgpu_limit_resident_bytes(pgpu_slice_limit(), gpu);
    enum pgpu_meter_status status =
        pgpu_meter_try_reserve(&pgpu_slice_meter, entry, bytes, resident_bytes, NULL);
    if (status == PGPU_METER_REFUSED) *refusing = entry;
    if (status != PGPU_METER_OK) return status;
    status = reserve_total(gpu, bytes);
    if (status != PGPU_METER_OK) pgpu_meter_refund(&pgpu_slice_meter, entry, bytes);
    return status;
}

static CUresult as_cuda(enum pgpu_meter_status status) {
    if (status == PGPU_METER_OK) return CUDA_SUCCESS;
    return status == PGPU_METER_REFUSED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_INITIALIZED;
}

/* Whether something was released that this process no longer uses and that is still charged. */
static bool has_made_room(int index) {
    int gpu = (int)gpu_of(index);
    uint64_t before_bytes = pgpu_meter_own_bytes(&pgpu_slice_meter, (unsigned)gpu);
    for (unsigned part = 0; part < PGPU_MEMORY_PRESSURE_PARTS; part++)
        pgpu_on_memory_pressure[part](gpu);
    return pgpu_meter_own_bytes(&pgpu_slice_meter, (unsigned)gpu) < before_bytes;
}

/* A grant may be used up by another thread or process of the job; then this one wishes again. */
#define MOST_WISHES 8

static CUresult reserve_or_grow(int index, uint64_t bytes, bool may_wait) {
    unsigned refusing;
    enum pgpu_growth growth = PGPU_GROWTH_IS_LARGER;
    enum pgpu_meter_status status = reserve(index, bytes, &refusing);
    if (status == PGPU_METER_REFUSED && has_made_room(index)) status = reserve(index, bytes, &refusing);
    for (unsigned wish = 0; status == PGPU_METER_REFUSED && wish < MOST_WISHES; wish++) {
        growth = pgpu_growth_wish(gpu_of(index), bytes, may_wait);
        if (growth != PGPU_GROWTH_IS_LARGER) break;
        status = reserve(index, bytes, &refusing);
    }
    if (status == PGPU_METER_OK) pgpu_growth_note_taken(gpu_of(index));
    if (status == PGPU_METER_REFUSED && growth != PGPU_GROWTH_AFTER_FREEING)
        pgpu_meter_note_limit_refusal(&pgpu_slice_meter, refusing, bytes);
    return as_cuda(status);
}

CUresult pgpu_charge_begin(struct pgpu_charge *charge, int gpu, uint64_t bytes) {
    *charge = (struct pgpu_charge){.gpu = gpu, .bytes = bytes};
    if (gpu == PGPU_NO_GPU) return CUDA_ERROR_NOT_PERMITTED;
    if (!pgpu_meter_is_claimed(&pgpu_slice_meter)) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pgpu_holdings_have_room()) return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes == 0) return CUDA_SUCCESS; /* the driver has an error of its own for it */
    return reserve_or_grow(gpu, bytes, true);
}

/* A dead process's bytes may have been taken back by this reservation, by an earlier call or by another
 * process of the job. */
static uint64_t patience_ns(const struct pgpu_charge *charge) {
    uint64_t asked_ns = pgpu_slice_limit()->wait_for_memory_ns;
    if (asked_ns >= AFTER_REAP_NS || charge->gpu == PGPU_NO_GPU) return asked_ns;
    bool was_reaped = pgpu_meter_was_reaped(&pgpu_slice_meter, gpu_of(charge->gpu), AFTER_REAP_NS);
    return was_reaped ? AFTER_REAP_NS : asked_ns;
}

static bool may_wait(struct pgpu_charge *charge) {
    uint64_t now_ns = pgpu_now_ns();
    if (charge->deadline_ns == 0) charge->deadline_ns = now_ns + patience_ns(charge);
    return now_ns < charge->deadline_ns;
}

bool pgpu_charge_should_retry(struct pgpu_charge *charge, CUresult result) {
    if (result == CUDA_SUCCESS) return false;
    if (result == CUDA_ERROR_OUT_OF_MEMORY && may_wait(charge)) {
        pause_shortly();
        return true;
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY && charge->gpu != PGPU_NO_GPU)
        pgpu_meter_note_device_refusal(&pgpu_slice_meter, gpu_of(charge->gpu));
    pgpu_charge_refund(charge->gpu, charge->bytes);
    return false;
}

CUresult pgpu_charge_more(struct pgpu_charge *charge, uint64_t bytes) {
    CUresult result = reserve_or_grow(charge->gpu, bytes, false);
    if (result == CUDA_SUCCESS) charge->bytes += bytes;
    return result;
}

void pgpu_charge_regardless(int gpu, uint64_t bytes) {
    if (gpu == PGPU_NO_GPU || bytes == 0) return;
    pgpu_meter_try_reserve(&pgpu_slice_meter, gpu_of(gpu), bytes, UINT64_MAX, NULL);
    if (is_resident(gpu))
        pgpu_meter_try_reserve(&pgpu_slice_meter, PGPU_RESIDENT_ENTRY(gpu_of(gpu)), bytes, UINT64_MAX, NULL);
}

void pgpu_charge_refund(int gpu, uint64_t bytes) {
    if (gpu == PGPU_NO_GPU || bytes == 0) return;
    pgpu_meter_refund(&pgpu_slice_meter, gpu_of(gpu), bytes);
    if (is_resident(gpu)) pgpu_meter_refund(&pgpu_slice_meter, PGPU_RESIDENT_ENTRY(gpu_of(gpu)), bytes);
}
