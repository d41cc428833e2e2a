/* A sidecar that is upgraded while it serves. It answers each connection to port 8080 with the versions that it was started
   with, its own and that of its twin, and hands its listening socket over to a newer instance: connections that wait in the
   queue of the socket are answered by that one. The versions say what an instance has to do:

     own > 0, twin = 0    begins to serve
     own > twin > 0       takes over from its twin
     own < twin, own = 0  does nothing

   `relay wait` ends when the instance serves, if it is to, and nobody holds it: a hook after the start. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PORT 8080
#define SOCKET "/handover/socket"
#define SERVING "/handover/serving"
#define HOLD "/handover/hold"

static long long own, twin;

static void quit(int signal) { _exit(0); }

static void rest(void) {
  for (;;) pause();
}

static long long number(const char *name) {
  const char *text = getenv(name);
  return text ? atoll(text) : 0;
}

/* Which instance serves; 0 if none ever did. */
static long long serving(void) {
  char text[32] = {0};
  int file = open(SERVING, O_RDONLY);
  if (file < 0) return 0;
  read(file, text, sizeof text - 1);
  close(file);
  return atoll(text);
}

static void serves_now(void) {
  char text[32];
  int file = open(SERVING ".new", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  write(file, text, snprintf(text, sizeof text, "%lld", own));
  close(file);
  rename(SERVING ".new", SERVING);
}

static struct sockaddr_un place(void) {
  struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
  return address;
}

/* A message of one byte, with room for one descriptor. */
struct parcel {
  char byte;
  struct iovec part;
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  struct msghdr message;
};

static void prepare(struct parcel *parcel) {
  memset(parcel, 0, sizeof *parcel);
  parcel->part.iov_base = &parcel->byte;
  parcel->part.iov_len = 1;
  parcel->message.msg_iov = &parcel->part;
  parcel->message.msg_iovlen = 1;
  parcel->message.msg_control = parcel->control.bytes;
  parcel->message.msg_controllen = sizeof parcel->control.bytes;
}

/* Gives the listening socket away. 0: the newcomer has said that it serves. */
static int give(int newcomer, int listener) {
  struct parcel parcel;
  char answer;
  prepare(&parcel);
  struct cmsghdr *header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof listener);
  memcpy(CMSG_DATA(header), &listener, sizeof listener);
  return sendmsg(newcomer, &parcel.message, MSG_NOSIGNAL) == 1 && read(newcomer, &answer, 1) == 1 ? 0 : -1;
}

/* Where newcomers ask. */
static int door(void) {
  struct sockaddr_un address = place();
  int waiting = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  unlink(SOCKET);
  if (waiting < 0 || bind(waiting, (void *)&address, sizeof address) || listen(waiting, 4)) exit(2);
  return waiting;
}

/* The listening socket of the twin, or -1. `waiting` is the own door then, and the twin has been told to let go. */
static int take(int *waiting) {
  struct sockaddr_un address = place();
  struct parcel parcel;
  int listener = -1, giver = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  prepare(&parcel);
  if (connect(giver, (void *)&address, sizeof address) == 0 && recvmsg(giver, &parcel.message, 0) == 1) {
    struct cmsghdr *header = CMSG_FIRSTHDR(&parcel.message);
    if (header && header->cmsg_type == SCM_RIGHTS) {
      memcpy(&listener, CMSG_DATA(header), sizeof listener);
      *waiting = door();
      write(giver, "x", 1);
    }
  }
  close(giver);
  return listener;
}

/* A listening socket of its own, or -1 while somebody else has the port. */
static int begin(int *waiting) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  int yes = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) {
    close(listener);
    return -1;
  }
  *waiting = door();
  return listener;
}

static void answer(int listener) {
  char text[64];
  int client = accept4(listener, 0, 0, SOCK_CLOEXEC);
  if (client < 0) return;
  write(client, text, snprintf(text, sizeof text, "%lld %lld\n", own, twin));
  close(client);
}

int main(int count, char **arguments) {
  struct sigaction action = {.sa_handler = quit};
  sigaction(SIGTERM, &action, 0);
  sigaction(SIGINT, &action, 0);
  signal(SIGPIPE, SIG_IGN);
  own = number("SIDECARSET_VERSION");
  twin = number("SIDECARSET_VERSION_ALT");
  if (count > 1 && !strcmp(arguments[1], "wait")) {
    while (own > twin && (serving() != own || access(HOLD, F_OK) == 0)) usleep(10000);
    return 0;
  }
  if (own <= twin) rest();
  int listener = -1, waiting = -1;
  for (;;) {
    if (twin > 0) listener = take(&waiting);
    if (listener < 0) listener = begin(&waiting);
    if (listener >= 0) break;
    usleep(10000);
  }
  /* Of the connections that both instances see one answers each: nobody waits for one that the other has answered. */
  fcntl(listener, F_SETFL, fcntl(listener, F_GETFL) | O_NONBLOCK);
  serves_now();
  for (;;) {
    struct pollfd both[] = {{.fd = listener, .events = POLLIN}, {.fd = waiting, .events = POLLIN}};
    if (poll(both, 2, -1) < 0) continue;
    if (both[0].revents) answer(listener);
    if (both[1].revents) {
      int newcomer = accept4(waiting, 0, 0, SOCK_CLOEXEC);
      int given = newcomer < 0 ? -1 : give(newcomer, listener);
      close(newcomer);
      if (given == 0) break;
      /* It has ended, and perhaps has put its door in the place of this one. */
      close(waiting);
      waiting = door();
    }
  }
  close(listener);
  close(waiting);
  rest();
}
