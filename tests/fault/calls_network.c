/* Sockets.  Only those of IPv4 and IPv6: the services talk through no others. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "tests/fault/shim.h"

static void *real_socket, *real_connect, *real_accept4, *real_send, *real_sendmsg, *real_recv;

static bool fails(enum shim_act act, int error) {
  if (act == ACT_FAIL) errno = error;
  return act == ACT_FAIL;
}

/* A version is announced: what it rests on must be on the disk now. */
static void mark(const void *bytes, size_t length) {
  static const char announces[] = "POST /v1/versions ";
  if (length >= sizeof announces && memcmp(bytes, announces, sizeof announces - 1) == 0) disk_mark("announce");
}

int socket(int domain, int type, int protocol) {
  int error = 0;
  if (domain != AF_INET && domain != AF_INET6) return REAL(socket)(domain, type, protocol);
  const enum shim_act act = shim_enter(CALL_SOCKET, &error);
  if (fails(act, error)) return -1;
  const int fd = REAL(socket)(domain, type, protocol);
  shim_leave(act);
  return fd;
}

int connect(int fd, const struct sockaddr *address, socklen_t length) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_CONNECT, &error);
  if (fails(act, error)) return -1;
  const int rc = REAL(connect)(fd, address, length);
  shim_leave(act);
  return rc;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_ACCEPT, &error);
  if (fails(act, error)) return -1;
  const int rc = REAL(accept4)(fd, address, length, flags);
  shim_leave(act);
  return rc;
}

ssize_t send(int fd, const void *bytes, size_t length, int flags) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_SEND, &error);
  if (fails(act, error)) return -1;
  mark(bytes, length);
  const ssize_t n = REAL(send)(fd, bytes, length, flags);
  shim_leave(act);
  return n;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_SEND, &error);
  if (fails(act, error)) return -1;
  const ssize_t n = REAL(sendmsg)(fd, message, flags);
  shim_leave(act);
  return n;
}

ssize_t recv(int fd, void *bytes, size_t length, int flags) {
  int error = 0;
  const enum shim_act act = shim_enter(CALL_RECEIVE, &error);
  if (fails(act, error)) return -1;
  const ssize_t n = REAL(recv)(fd, bytes, length, flags);
  shim_leave(act);
  return n;
}
