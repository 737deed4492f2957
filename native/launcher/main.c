/* pgpu-launch: puts a process into its slice, holds it until the runtime has recorded it, and execs the job's
 * command.
 *
 * It needs no SUID bit and no capability, and keeps the caller's streams and limits. Started by root for
 * another user (--as) it becomes that user before it touches any path that the user named. If anything that
 * was requested cannot be set up, it exits with 125 and one line for the runtime instead of running the
 * command without it. A job without a GPU has no slice, and sees this machine's files as they are. */
#include <fcntl.h>
#include <unistd.h>

#include "command.h"
#include "credentials.h"
#include "report.h"
#include "view.h"

#define IN_VIEW "/.pgpu/libpgpu.so:/.pgpu/libpgpu-ml.so"

static void start_session(bool has_terminal) {
    if (setsid() < 0) give_up("session", "setsid");
    if (has_terminal) take_terminal();
}

static void enter_slice(const struct options *options) {
    enter_private_namespace();
    if (!enter_view(options) && !options->is_probe) preload(IN_VIEW);
}

static void enter_directory(const struct options *options) {
    if (options->directory != NULL && chdir(options->directory) != 0)
        give_up("directory", options->directory);
}

/* After the view was built, which a full mask or a small limit would spoil. */
static void take_mask_and_limits(const struct options *options) {
    if (options->mask != NULL) take_mask(options->mask);
    for (int i = 0; i < options->limit_count; i++)
        take_limit(options->limits[i]);
}

/* The directory is entered by the job's own user, in its own view: root may go where the user may not. */
static void enter_as_another(const struct options *options) {
    if (options->slice != NULL) enter_slice(options);
    take_mask_and_limits(options);
    become(options->identity);
    enter_directory(options);
}

int main(int count, char **arguments) {
    (void)count;
    fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC);
    fcntl(REPORT_FD, F_SETFD, FD_CLOEXEC);
    struct options options = {0};
    read_options(&options, arguments);
    if (options.is_marked)
        fcntl(MARK_FD, F_SETFD, FD_CLOEXEC);
    else
        close(MARK_FD); /* nothing of the caller reaches another user */
    if (options.is_probe) {
        enter_slice(&options);
        return 0;
    }
    read_environment();
    start_session(options.has_terminal);
    if (options.identity != NULL) {
        enter_as_another(&options);
    } else {
        enter_directory(&options);
        if (options.slice != NULL) enter_slice(&options);
        take_mask_and_limits(&options);
    }
    wait_until_let_go();
    if (options.is_marked) mark_run();
    run_command(options.command);
}
