/* PID 1 of Pod sandboxes and the quickest test application: ends at once on SIGTERM and SIGINT, and reaps orphans. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void quit(int signal) { _exit(0); }
static void reap(int signal) { while (waitpid(-1, 0, WNOHANG) > 0); }

int main(void) {
  struct sigaction action = {0};
  action.sa_handler = quit;
  sigaction(SIGTERM, &action, 0);
  sigaction(SIGINT, &action, 0);
  action.sa_handler = reap;
  sigaction(SIGCHLD, &action, 0);
  for (;;) pause();
}
