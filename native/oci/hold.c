/* pgpu-hold: the first program of a container whose slice is not granted yet. It prints why the container
 * waits, and execs the container's own command once the slice is granted.
 *
 * It is process 1 of the container, so it handles every signal that would end a program by default: the
 * kernel protects process 1 from them, and `docker stop` would wait for ten seconds. It is linked with no
 * library, so that it starts in any image, needs no privilege, and never starts the command without a line
 * from outside. These lines arrive through a named pipe:
 *
 *     =TEXT   print TEXT
 *     +       start the command
 *     -CODE   end with CODE */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <time.h>

#include "container_command.h"
#include "system.h"
#include "text.h"

#define GATE     "/.pgpu/gate"
#define SETTINGS "/.pgpu/environment"

#define MOST_LINE           1024
#define EAGAIN              11
#define EINTR               4
#define TERMINAL_ATTRIBUTES 0x5401 /* TCGETS */
#define SIGNAL_EXIT_BASE    128
#define SIGNAL_INFO_BYTES   128
#define MASK_BYTES          8
#define PATIENCE_SECONDS    60 /* for a supervisor that died to be replaced */

typedef unsigned long mask;

ENTRY;
_Noreturn void begin(long *stack);

/* gcc writes a loop that fills or copies as a call of these. */
void *memset(void *start, int byte, size_t length) {
    for (volatile char *at = start; length > 0; length--)
        *at++ = (char)byte;
    return start;
}

void *memcpy(void *to, const void *from, size_t length) {
    const char *source = from;
    for (volatile char *at = to; length > 0; length--)
        *at++ = *source++;
    return to;
}

static mask bit(int number) {
    return 1UL << (number - 1);
}

static bool has_terminal(void) {
    char attributes[256];
    for (int descriptor = 0; descriptor < 3; descriptor++)
        if (CALL(__NR_ioctl, descriptor, TERMINAL_ATTRIBUTES, attributes, 0) == 0) return true;
    return false;
}

/* The signals that end the wait. Some images use SIGWINCH as their stop signal; on a terminal it only reports
 * a new size. */
static mask ending(void) {
    const mask harmless =
        bit(SIGCHLD) | bit(SIGCONT) | bit(SIGURG) | bit(SIGTSTP) | bit(SIGTTIN) | bit(SIGTTOU);
    return ~(harmless | (has_terminal() ? bit(SIGWINCH) : 0));
}

static mask block_signals(void) {
    const mask all = ~0UL;
    mask before = 0;
    CALL(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before, MASK_BYTES);
    return before;
}

static void leave_if_signalled(int signals) {
    unsigned info[SIGNAL_INFO_BYTES / sizeof(unsigned)];
    if (read_some(signals, (char *)info, sizeof info) == (long)sizeof info)
        leave(SIGNAL_EXIT_BASE + (int)info[0]);
}

static int number_in(const char *text) {
    int number = 0;
    for (; *text >= '0' && *text <= '9' && number < 256; text++)
        number = number * 10 + *text - '0';
    return number & 255;
}

/* True if the line starts the command. */
static bool handle_line(const char *line) {
    if (*line == '=') print(line + 1);
    if (*line == '-') leave(number_in(line + 1));
    return *line == '+';
}

/* True once the line that starts the command was read; `*is_attended` is set if the other end is open. */
static bool listen(int gate, bool *is_attended) {
    static char line[MOST_LINE];
    static size_t length;
    char byte;
    long got;
    while ((got = read_some(gate, &byte, 1)) == 1) {
        if (byte != '\n') {
            if (length + 1 < MOST_LINE) line[length++] = byte;
            continue;
        }
        line[length] = '\0';
        length = 0;
        if (handle_line(line)) return true;
    }
    *is_attended = got == -EAGAIN || got == -EINTR;
    return false;
}

static int open_gate(void) {
    return (int)CALL(__NR_openat, AT_FDCWD, GATE, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
}

/* After its writer has closed, a pipe polls as hung up for ever; a new descriptor waits for the next writer.
 */
static int opened_anew(int gate) {
    const int fresh = open_gate();
    if (fresh < 0) return gate;
    CALL(__NR_close, gate, 0, 0, 0);
    return fresh;
}

static void rest(int gate, int signals, bool is_attended) {
    struct pollfd waits[] = {{.fd = signals, .events = POLLIN}, {.fd = gate, .events = POLLIN}};
    struct timespec second = {.tv_sec = 1};
    CALL(__NR_ppoll, waits, 2, is_attended ? NULL : &second, 0);
    leave_if_signalled(signals);
}

static long now_seconds(void) {
    struct timespec now = {0};
    CALL(__NR_clock_gettime, CLOCK_BOOTTIME, &now, 0, 0);
    return now.tv_sec;
}

static void wait_for_word(void) {
    const mask wanted = ending();
    const int signals = (int)CALL(__NR_signalfd4, -1, &wanted, MASK_BYTES, O_NONBLOCK | O_CLOEXEC);
    int gate = open_gate();
    if (signals < 0 || gate < 0) {
        print("this container's slice is gone: start the container again");
        leave(125);
    }
    long attended_seconds = now_seconds();
    for (bool is_attended; !listen(gate, &is_attended);) {
        if (is_attended)
            attended_seconds = now_seconds();
        else
            gate = opened_anew(gate);
        if (now_seconds() - attended_seconds > PATIENCE_SECONDS) {
            print("the engine no longer handles this container's request for GPU memory");
            leave(125);
        }
        rest(gate, signals, is_attended);
    }
}

_Noreturn void begin(long *stack) {
    char **command = (char **)(stack + 2);
    char **environment = (char **)(stack + 1) + *stack + 1;
    if (*stack < 2) leave(127);
    const mask before = block_signals();
    const int missing = missing_command(command, environment);
    if (missing != 0) leave(missing);
    wait_for_word();
    environment = with_settings(environment, SETTINGS);
    /* execve keeps the signal mask: the command must get the one that this program was started with. */
    CALL(__NR_rt_sigprocmask, SIG_SETMASK, &before, 0, MASK_BYTES);
    become_command(command, environment);
}
