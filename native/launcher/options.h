/* The launcher's command line, written by pgpu.runtimes.process_runtime alone. */
#ifndef PGPU_LAUNCHER_OPTIONS_H
#define PGPU_LAUNCHER_OPTIONS_H

#include <stdbool.h>

#define MAX_PAIRS  64
#define MAX_LIMITS 32

/* `--driver NAME=PATH`, `--shadow NAME=PATH`: a file of the slice and a path of the host. */
struct pair {
    const char *name;
    const char *path;
};

struct options {
    const char *slice;     /* becomes /.pgpu; NULL: no private view, the runtime preloads */
    const char *usage;     /* becomes /.pgpu/usage */
    const char *time;      /* becomes /.pgpu/time; NULL: nothing is published */
    const char *board;     /* becomes /.pgpu/board */
    const char *simulated; /* becomes /.pgpu/simgpu; NULL on a real GPU */
    const char *mps;       /* becomes /.pgpu/mps; NULL where the job shares its GPU otherwise */
    const char
        *preload_path; /* the host's ld.so.preload, which the slice's one is put over or made to appear as */
    const char *identity;           /* UID:GID:GROUP,… of the job's user; NULL: of the launcher's caller */
    const char *mask;               /* file mode mask in octal; NULL: the caller's */
    const char *limits[MAX_LIMITS]; /* RESOURCE:SOFT:HARD in the kernel's numbers; -1: none */
    int limit_count;
    const char *directory; /* where the command starts; NULL: where the launcher was started */
    bool is_marked;        /* MARK_FD is there */
    bool has_terminal;     /* stdin becomes the controlling terminal */
    bool is_probe;         /* build a view of empty files, run nothing, exit 0 */
    struct pair drivers[MAX_PAIRS];
    int driver_count;
    struct pair shadows[MAX_PAIRS];
    int shadow_count;
    char **command;
};

/* Read argv; give up on anything unknown or incomplete. */
void read_options(struct options *options, char **argv);

#endif
