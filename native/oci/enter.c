/* pgpu-enter DIRECTORY COMMAND…: enters a container's working directory as the container's user and becomes
 * its command.
 *
 * An engine enters it as root, past doors that are closed to the user. Linked with no library, so that it
 * starts in any image; it makes no directory, and ends as Docker does where it cannot go on: 127 for what is
 * not there, 126 for what may not be entered. */
#include <errno.h>

#include "container_command.h"
#include "system.h"
#include "text.h"

ENTRY;
_Noreturn void begin(long *stack);

static _Noreturn void refuse(const char *directory, long error) {
    static const char beginning[] = "pgpu: cannot enter the working directory \"";
    static const char missing[] = "\": no such directory in this container\n";
    static const char closed[] = "\": permission denied\n", other[] = "\": it is not a directory\n";
    write_all(2, beginning, sizeof beginning - 1);
    write_all(2, directory, length_of(directory));
    if (error == -ENOENT)
        write_all(2, missing, sizeof missing - 1);
    else if (error == -EACCES)
        write_all(2, closed, sizeof closed - 1);
    else
        write_all(2, other, sizeof other - 1);
    leave(error == -ENOENT ? 127 : 126);
}

_Noreturn void begin(long *stack) {
    char **words = (char **)(stack + 1);
    char **environment = words + *stack + 1;
    if (*stack < 3) leave(127);
    const long error = CALL(__NR_chdir, words[1], 0, 0, 0);
    if (error != 0) refuse(words[1], error);
    become_command(words + 2, environment);
}
