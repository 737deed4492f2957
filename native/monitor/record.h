/* The durable record of one start of a job, in the spool directory: `started-JOB.TRY`, which becomes
 * `ended-JOB.TRY`.
 *
 * Its room is taken before the job starts, so a full disk cannot lose the end. The first line is the format's
 * version; one `name=value` a line follows. The launcher overwrites the byte at MARK directly before it
 * executes the job's command: without that mark the command never ran. pgpu.engine reads it. */
#pragma once
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

enum { RECORD_SIZE = 4096, MARK = 14 };

struct record {
    int fd, spool;
    char first[96], started[96], ended[96]; /* its names, one after the other */
    bool has_started;
    off_t length;
};

/* Creates the record and takes its room; false with errno. */
bool record_create(struct record *record, int spool, const char *job, const char *try);

/* Names the main process. False with errno; EEXIST if this try was started before. */
bool record_start(struct record *record, pid_t main);

/* Writes how the main process ended and makes it durable; false if that failed. */
bool record_end(struct record *record, const siginfo_t *end, const struct rusage *usage, uint64_t dropped);

/* Removes the record of a start that did not happen: this one, never one of the same name that was there
 * before. */
void record_remove(const struct record *record);

struct process {
    pid_t pid;
    char name[16]; /* as in /proc/PID/comm */
    unsigned long start_ticks;
};

/* Reads the beginning of a file as a string of at most SIZE - 1 bytes; false if there is none. */
bool read_text(const char *path, char *text, size_t size);

/* Parses /proc/PID/stat; the process chose its name, which is in parentheses and may hold any of them too. */
bool parse_process(const char *text, pid_t pid, struct process *process);

/* Also of a process that is not reaped yet. False if there is none, or /proc does not show it. */
bool identify(pid_t pid, struct process *process);

/* Writes `reaped-PID`: how a process ended that its parent did not outlive. False with errno. */
bool record_reaped(const char *directory, const struct process *process, const siginfo_t *end);
