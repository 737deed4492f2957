#include "control.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>

#include "digits.h"

static const struct {
    const char *name;
    enum control_kind kind;
    int numbers;
    unsigned long most;
} WORDS[] = {{"signal", CONTROL_SIGNAL, 1, NSIG - 1},
             {"window", CONTROL_WINDOW, 2, 0xffff},
             {"end", CONTROL_END, 0, 0},
             {"finish", CONTROL_FINISH, 0, 0},
             {"quit", CONTROL_QUIT, 0, 0}};

/* Reads as many numbers as a word has, a space before each; false if there are others. */
static bool read_numbers(const char *rest, int count, unsigned long most, unsigned long *numbers) {
    for (int i = 0; i < count; i++) {
        if (rest == NULL || *rest != ' ') return false;
        rest = read_digits(rest + 1, 10, &numbers[i]);
        if (rest == NULL || numbers[i] > most) return false;
    }
    return *rest == '\0';
}

struct control parse_control(const char *text, size_t length) {
    struct control found = {.kind = NO_CONTROL};
    char word[MOST_CONTROL + 1] = "";
    if (length > MOST_CONTROL) return found;
    memcpy(word, text, length);
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        const size_t name = strlen(WORDS[i].name);
        if (strncmp(word, WORDS[i].name, name) != 0) continue;
        if (read_numbers(word + name, WORDS[i].numbers, WORDS[i].most, found.numbers))
            found.kind = WORDS[i].kind;
    }
    return found;
}
