#include "heartbeat.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "digits.h"
#include "record.h"

enum { MOST_SILENT_MS = 10000, FIRST_PAUSE_MS = 1000, MOST_PERIOD_S = 60, LEAST_RUN_PARTS = 50 };
enum { PERIOD_UNIT = 1000000, TICKS_PER_SECOND = 100 /* of /proc, on every machine */ };

static int64_t beat_of(int lock) {
    struct stat status;
    return fstat(lock, &status) == 0 ? (int64_t)status.st_mtim.tv_sec : 0;
}

/* 0 for a time that is no beat. */
static uint64_t period_ms(int64_t beat) {
    const int64_t period_s = beat / PERIOD_UNIT;
    return period_s >= 1 && period_s <= MOST_PERIOD_S ? (uint64_t)period_s * 1000u : 0;
}

/* Returns field NUMBER of /proc/PID/stat, as proc_pid_stat(5) counts them; "" where there are fewer. The
 * name, field 2, is in parentheses and may hold any of them too. */
static const char *field_of(const char *text, int number) {
    const char *behind = strrchr(text, ')');
    const char *at = behind == NULL ? "" : behind + 1;
    for (int field = 3; *at != '\0'; field++) {
        at++; /* the space before it */
        if (field == number) break;
        at += strcspn(at, " ");
    }
    return at;
}

/* Ticks that the main thread ran; false if it cannot be read, if a debugger has stopped it, or if it waits
 * for a disk or driver in the kernel, where no signal ends it. */
static bool read_run_ticks(pid_t agent, uint64_t *ticks) {
    char path[64], text[1024];
    unsigned long user, system;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)agent, (int)agent);
    if (!read_text(path, text, sizeof text)) return false;
    if (read_digits(field_of(text, 14), 10, &user) == NULL ||
        read_digits(field_of(text, 15), 10, &system) == NULL)
        return false;
    *ticks = user + system;
    return *field_of(text, 3) != 't' && *field_of(text, 3) != 'D';
}

void heartbeat_begin(struct heartbeat *heartbeat, int lock) {
    *heartbeat = (struct heartbeat){.beat = beat_of(lock)};
}

bool heartbeat_is_lost(struct heartbeat *heartbeat, int lock, pid_t agent, uint64_t now) {
    if (now < heartbeat->looks_at_ms) return false;
    const int64_t beat = beat_of(lock);
    uint64_t run_ticks = heartbeat->run_ticks;
    const bool is_readable = read_run_ticks(agent, &run_ticks);
    const uint64_t ran_ms = (run_ticks - heartbeat->run_ticks) * 1000u / TICKS_PER_SECOND;
    const bool is_silent =
        is_readable && beat == heartbeat->beat && ran_ms < heartbeat->pause_ms / LEAST_RUN_PARTS;
    heartbeat->silent_ms = is_silent ? heartbeat->silent_ms + heartbeat->pause_ms : 0;
    if (beat != heartbeat->beat) heartbeat->period_ms = period_ms(beat);
    heartbeat->beat = beat;
    heartbeat->run_ticks = run_ticks;
    heartbeat->pause_ms = heartbeat->period_ms != 0 ? heartbeat->period_ms : FIRST_PAUSE_MS;
    heartbeat->looks_at_ms = now + heartbeat->pause_ms;
    if (heartbeat->period_ms == 0 || heartbeat->silent_ms < MOST_SILENT_MS) return false;
    heartbeat->silent_ms = 0;
    return true;
}
