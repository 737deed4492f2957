/* The readers that one input is given to, each in a file of its kind, and what they share. */
#ifndef PGPU_FUZZ_READERS_H
#define PGPU_FUZZ_READERS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                  \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* A copy with a zero behind it, of exactly this size, so that a read beyond is found. */
char *copy(const uint8_t *data, size_t size);

/* The folder of this process, made at the first call and removed at its end. */
const char *own_folder(void);

/* Replace a file of that folder. */
void write_file(const char *name, const uint8_t *data, size_t size);

/* slice_readers.c: what the shim and the host read of a slice. */
void read_limit(const uint8_t *data, size_t size);
void read_usage(const uint8_t *data, size_t size);
void read_board(const uint8_t *data, size_t size);

/* argument_readers.c: what the launcher and the OCI runtime are called with. */
void read_launcher_options(const uint8_t *data, size_t size);
void read_oci_arguments(const uint8_t *data, size_t size);
void read_exec_settings(const uint8_t *data, size_t size);

#endif
