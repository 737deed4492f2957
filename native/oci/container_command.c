#include "container_command.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "system.h"
#include "text.h"

#define MOST_SETTINGS 16384
#define MOST_BYTES    65536
#define PATH_LENGTH   4096
#define X_OK          1
#define ENOENT        2
#define EACCES        13
#define ENOTDIR       20

static const char STANDARD_PATH[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

void print(const char *text) {
    write_all(2, "pgpu: ", 6);
    write_all(2, text, length_of(text));
    write_all(2, "\n", 1);
}

static const char *value_of(char **environment, const char *setting) {
    for (; *environment != NULL; environment++)
        if (same_name(*environment, setting)) return *environment + length_of(setting);
    return NULL;
}

static bool join(char *file, const char *directory, size_t directory_length, const char *name) {
    const size_t name_length = length_of(name);
    if (directory_length + name_length + 2 > PATH_LENGTH) return false;
    size_t at = 0;
    for (size_t i = 0; i < directory_length; i++)
        file[at++] = directory[i];
    if (directory_length > 0) file[at++] = '/';
    for (size_t i = 0; i <= name_length; i++)
        file[at++] = name[i];
    return true;
}

/* execve only returns on an error. The trial tests the execute permission instead, so that a missing command
 * fails before the wait for the slice. */
static long attempt(const char *file, char **command, char **environment, bool is_trial) {
    if (is_trial) return CALL(__NR_faccessat, AT_FDCWD, file, X_OK, 0);
    return CALL(__NR_execve, file, command, environment, 0);
}

/* As execvp(3): a directory without the file is skipped, and another error counts only if no later directory
 * has the command. */
static long attempt_on_path(char **command, char **environment, bool is_trial) {
    const char *path = value_of(environment, "PATH=");
    long worst = -ENOENT;
    for (const char *from = path != NULL ? path : STANDARD_PATH; from != NULL;) {
        size_t length = 0;
        while (from[length] != ':' && from[length] != '\0')
            length++;
        char file[PATH_LENGTH];
        const long result =
            join(file, from, length, command[0]) ? attempt(file, command, environment, is_trial) : -ENOENT;
        if (result == 0) return 0;
        if (result != -ENOENT && result != -ENOTDIR) worst = result;
        from = from[length] == ':' ? from + length + 1 : NULL;
    }
    return worst;
}

static long find(char **command, char **environment, bool is_trial) {
    if (has_slash(command[0])) return attempt(command[0], command, environment, is_trial);
    return attempt_on_path(command, environment, is_trial);
}

static int explain(const char *name, long error) {
    const bool is_missing = error == -ENOENT || error == -ENOTDIR;
    write_all(2, "pgpu: exec: \"", 13);
    write_all(2, name, length_of(name));
    if (is_missing)
        write_all(2, "\": no such command in this container\n", 37);
    else if (error == -EACCES)
        write_all(2, "\": permission denied\n", 21);
    else if (error == -E2BIG)
        write_all(2, "\": argument list too long\n", 26);
    else
        write_all(2, "\": it cannot be executed\n", 25);
    return is_missing ? 127 : 126;
}

int missing_command(char **command, char **environment) {
    const long error = find(command, environment, true);
    return error == 0 ? 0 : explain(command[0], error);
}

_Noreturn void become_command(char **command, char **environment) {
    leave(explain(command[0], find(command, environment, false)));
}

static size_t read_file(const char *path, char *buffer, size_t size) {
    const int descriptor = (int)CALL(__NR_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    size_t length = 0;
    long got = descriptor;
    while (got >= 0 && length < size && (got = read_some(descriptor, buffer + length, size - length)) > 0)
        length += (size_t)got;
    if (got < 0 || length == size || (length > 0 && buffer[length - 1] != '\0')) {
        print("the environment settings of the lease cannot be read");
        leave(125);
    }
    return length;
}

/* The lease's settings come first and replace variables of the container. There is no allocator without a C
 * library, so both arrays are static. */
char **with_settings(char **environment, const char *path) {
    static char block[MOST_BYTES];
    static char *joined[MOST_SETTINGS + 1];
    size_t count = 0;
    const size_t length = read_file(path, block, sizeof block);
    for (size_t at = 0; at < length && count < MOST_SETTINGS; at += length_of(block + at) + 1)
        joined[count++] = block + at;
    const size_t ours = count;
    for (; *environment != NULL && count < MOST_SETTINGS; environment++) {
        bool is_replaced = false;
        for (size_t i = 0; i < ours && !is_replaced; i++)
            is_replaced = same_name(*environment, joined[i]);
        if (!is_replaced) joined[count++] = *environment;
    }
    if (*environment != NULL) {
        print("the environment has too many variables");
        leave(125);
    }
    return joined;
}
