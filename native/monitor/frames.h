/* What clients and a monitor exchange over the attach socket: frames of a kind (8 bits), a length (32 bits,
 * big endian) and a payload. pgpu.engine.streams.frames is the other side. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum frame_kind { HELLO = 1, STDIN_DATA = 2, STDIN_END = 3, OUTPUT = 4, GAP = 5, END = 6 };
enum { FRAME_HEADER = 5, MOST_HELLO = 512, MOST_FRAME = 1 << 20 };

struct hello {
    uint64_t offset; /* where in the log the client begins */
    bool holds_back; /* the job waits rather than that this client loses output */
    bool owns_stdin; /* the job's input ends when this client goes */
};

void put_frame_header(unsigned char *to, enum frame_kind kind, uint32_t length);
uint32_t frame_length(const unsigned char *header);

/* Parses the JSON object of a HELLO frame; false if it is none. */
bool parse_hello(const char *text, size_t length, struct hello *hello);
