/* Broadcasts over MPI among the processes that one mpirun has started.
 *
 *   member --hello {serial, rank}--> root            join: the root answers when all have come
 *   member <--seating {parent, children}-- root
 *   root ==pieces==> its two children ==pieces==> theirs ...       broadcast: a binary tree, one piece after the other
 *
 * All messages go from one process to one other over the world's own communicator, with the serial as their tag.  A
 * group has no communicator of MPI's: making one blocks until all members have come, and a broadcast over it needs all
 * of them. These messages are nonblocking and polled with a deadline in the caller's thread.  A piece stays in the
 * communicator's window until its receivers have it.
 *
 * After a loss receives are cancelled.  Sends cannot be cancelled, so a window that MPI may still read from goes to the
 * fabric's `left` and is freed once MPI has released it; a piece that a dead member never took keeps one window for
 * each loss.  A message with an old serial meets no receive, or one that recognizes it as old.
 *
 * Threading: one thread joins, broadcasts and frees, and owns `left`. */
#include <stdlib.h>
#include <string.h>

#include "common/comm/fabric_membership.h"
#include "common/comm/mpi_world.h"

enum { PIECE_BYTES = 1 << 20, WINDOW = 4, CHILDREN = 2, TAG_FIRST = 1024, TAGS = 30000, END_MS = 5000, NOBODY = -1 };

struct hello {
  uint64_t serial;
  int32_t rank, size;
};
struct seating {
  uint64_t serial;
  int32_t parent, children[CHILDREN]; /* places, or NOBODY */
};

/* A message of joining: the root exchanges one of either kind with each member. */
struct greeting {
  struct hello hello;
  struct seating seating;
  MPI_Request request;
  bool receiving, came;
};

struct slot {
  MPI_Request receiving, sending[CHILDREN];
  char bytes[PIECE_BYTES];
};

/* Memory that MPI reads and writes. */
struct window {
  struct window *next; /* in `left` */
  struct greeting *greetings;
  int greeting_count;
  struct slot slots[WINDOW];
};

struct fabric_mpi {
  struct fabric fabric; /* first: the table */
  struct mpi_world *world;
  uint64_t serial;     /* of the last token made */
  struct window *left; /* by communicators that were lost */
};

struct group {
  struct membership member; /* first */
  struct fabric_mpi *fabric;
  struct window *window;
  uint64_t serial;
  int tag, parent, children[CHILDREN];
};

static struct group *group_of(struct comm *c) { return (struct group *)c; }
static struct fabric_mpi *fabric_of(struct fabric *f) { return (struct fabric_mpi *)f; }

/* --- messages --- */

/* *done when the message is through; *bytes, unless NULL, is how long a received one was. */
static enum rc look(MPI_Request *request, bool *done, int *bytes, const char *what, struct err *err) {
  MPI_Status status;
  int flag = 0;
  const enum rc rc = mpi_answer(MPI_Test(request, &flag, &status), what, err);
  *done = rc == RC_OK && flag;
  if (*done && bytes) MPI_Get_count(&status, MPI_BYTE, bytes);
  return rc;
}

static enum rc send_to(struct group *g, int place, const void *bytes, size_t count, MPI_Request *request,
                       const char *what, struct err *err) {
  return mpi_answer(MPI_Isend(bytes, (int)count, MPI_BYTE, place, g->tag, g->fabric->world->all, request), what, err);
}

static enum rc receive_from(struct group *g, int place, void *bytes, size_t count, MPI_Request *request,
                            const char *what, struct err *err) {
  return mpi_answer(MPI_Irecv(bytes, (int)count, MPI_BYTE, place, g->tag, g->fabric->world->all, request), what, err);
}

/* --- windows --- */

static void window_free(struct window *w) {
  if (w) free(w->greetings);
  free(w);
}

static struct window *window_new(int greeting_count) {
  struct window *w = malloc(sizeof *w);
  if (!w) return NULL;
  w->next = NULL;
  w->greeting_count = greeting_count;
  w->greetings = calloc((size_t)greeting_count, sizeof *w->greetings);
  if (!w->greetings) {
    window_free(w);
    return NULL;
  }
  for (int i = 0; i < greeting_count; i++) w->greetings[i].request = MPI_REQUEST_NULL;
  for (int s = 0; s < WINDOW; s++) {
    w->slots[s].receiving = MPI_REQUEST_NULL;
    for (int c = 0; c < CHILDREN; c++) w->slots[s].sending[c] = MPI_REQUEST_NULL;
  }
  return w;
}

static bool is_idle(MPI_Request *request) {
  bool done = true;
  return *request == MPI_REQUEST_NULL || (look(request, &done, NULL, "", NULL) == RC_OK && done);
}

/* True once MPI has released the window. */
static bool window_is_idle(struct window *w) {
  bool idle = true;
  for (int i = 0; i < w->greeting_count; i++) idle = is_idle(&w->greetings[i].request) && idle;
  for (int s = 0; s < WINDOW; s++) {
    idle = is_idle(&w->slots[s].receiving) && idle;
    for (int c = 0; c < CHILDREN; c++) idle = is_idle(&w->slots[s].sending[c]) && idle;
  }
  return idle;
}

static void left_look(struct fabric_mpi *f) {
  for (struct window **at = &f->left; *at;) {
    struct window *w = *at;
    if (window_is_idle(w)) {
      *at = w->next;
      window_free(w);
    } else {
      at = &w->next;
    }
  }
}

static void window_leave(struct fabric_mpi *f, struct window *w) {
  for (int i = 0; i < w->greeting_count; i++) {
    if (w->greetings[i].receiving && w->greetings[i].request != MPI_REQUEST_NULL) MPI_Cancel(&w->greetings[i].request);
  }
  for (int s = 0; s < WINDOW; s++) {
    if (w->slots[s].receiving != MPI_REQUEST_NULL) MPI_Cancel(&w->slots[s].receiving);
  }
  w->next = f->left;
  f->left = w;
  left_look(f);
}

/* --- broadcast --- */

/* Pieces below `done` are with the children, below `here` with this member, below `begun` on their way to it; piece k
 * is in slot k % WINDOW. */
struct transfer {
  char *bytes;
  size_t count, pieces;
  size_t begun, here, done;
};

static size_t piece_bytes(const struct transfer *t, size_t piece) {
  return piece + 1 < t->pieces ? PIECE_BYTES : t->count - piece * PIECE_BYTES;
}

/* In the order of pieces, because they are received in that order. */
static enum rc piece_send(struct group *g, struct slot *slot, size_t bytes, struct err *err) {
  enum rc rc = RC_OK;
  for (int c = 0; c < CHILDREN && rc == RC_OK; c++) {
    if (g->children[c] != NOBODY)
      rc = send_to(g, g->children[c], slot->bytes, bytes, &slot->sending[c], "broadcast", err);
  }
  return rc;
}

static enum rc piece_begin(struct group *g, struct transfer *t, bool *moved, struct err *err) {
  if (t->begun == t->pieces || t->begun == t->done + WINDOW) return RC_OK;
  struct slot *slot = &g->window->slots[t->begun % WINDOW];
  const size_t bytes = piece_bytes(t, t->begun);
  *moved = true;
  if (g->member.comm.rank > 0) {
    t->begun++;
    return receive_from(g, g->parent, slot->bytes, PIECE_BYTES, &slot->receiving, "broadcast", err);
  }
  memcpy(slot->bytes, t->bytes + t->begun * PIECE_BYTES, bytes);
  t->here = ++t->begun;
  return piece_send(g, slot, bytes, err);
}

/* The oldest piece that is on its way here. */
static enum rc piece_receive(struct group *g, struct transfer *t, bool *moved, struct err *err) {
  struct slot *slot = &g->window->slots[t->here % WINDOW];
  if (t->here == t->begun) return RC_OK;
  const size_t expected = piece_bytes(t, t->here);
  bool came;
  int bytes = 0;
  const enum rc rc = look(&slot->receiving, &came, &bytes, "broadcast", err);
  if (rc != RC_OK || !came) return rc;
  if ((size_t)bytes != expected)
    return err_set(err, RC_UNAVAILABLE, NULL, "broadcast: expected a piece of %zu bytes, got %d", expected, bytes);
  memcpy(t->bytes + t->here * PIECE_BYTES, slot->bytes, expected);
  *moved = true;
  t->here++;
  return piece_send(g, slot, expected, err);
}

/* The oldest piece that is on its way to the children. */
static enum rc piece_end(struct group *g, struct transfer *t, bool *moved, struct err *err) {
  struct slot *slot = &g->window->slots[t->done % WINDOW];
  if (t->done == t->here) return RC_OK;
  for (int c = 0; c < CHILDREN; c++) {
    bool left = true;
    if (slot->sending[c] == MPI_REQUEST_NULL) continue;
    const enum rc rc = look(&slot->sending[c], &left, NULL, "broadcast", err);
    if (rc != RC_OK || !left) return rc;
  }
  t->done++;
  *moved = true;
  return RC_OK;
}

static enum rc group_broadcast(struct comm *comm, void *bytes, size_t count, int root, int64_t wait_ms,
                               struct err *err) {
  struct group *g = group_of(comm);
  struct transfer t = {.bytes = bytes, .count = count, .pieces = (count + PIECE_BYTES - 1) / PIECE_BYTES};
  struct member_wait wait = member_wait_start(wait_ms);
  enum rc rc = membership_broadcasts(comm, root, err);
  while (rc == RC_OK && t.done < t.pieces) {
    bool moved = false;
    rc = piece_begin(g, &t, &moved, err);
    if (rc == RC_OK) rc = piece_receive(g, &t, &moved, err);
    if (rc == RC_OK) rc = piece_end(g, &t, &moved, err);
    if (rc == RC_OK && t.done < t.pieces) rc = member_wait_on(&wait, &g->member, moved, "broadcast", err);
  }
  if (rc != RC_OK) atomic_store(&g->member.lost, true);
  return rc;
}

static void group_free(struct comm *comm) {
  struct group *g = group_of(comm);
  window_leave(g->fabric, g->window);
  free(g);
}

/* --- joining --- */

static struct seating seating_of(uint64_t serial, int rank, int size, const int64_t *places) {
  struct seating s = {.serial = serial, .parent = rank > 0 ? (int32_t)places[(rank - 1) / CHILDREN] : NOBODY};
  for (int c = 0; c < CHILDREN; c++) {
    const int child = CHILDREN * rank + 1 + c;
    s.children[c] = child < size ? (int32_t)places[child] : NOBODY;
  }
  return s;
}

static void sit(struct group *g, const struct seating *s) {
  g->parent = s->parent;
  for (int c = 0; c < CHILDREN; c++) g->children[c] = s->children[c];
}

static enum rc hello_await(struct group *g, struct greeting *from, int64_t place, struct err *err) {
  from->receiving = true;
  return receive_from(g, (int)place, &from->hello, sizeof from->hello, &from->request, "joining", err);
}

/* One look at every member that is still to come. */
static enum rc hellos_look(struct group *g, const struct fabric_seat *seat, int *missing, bool *moved,
                           struct err *err) {
  enum rc rc = RC_OK;
  for (int m = 1; m < seat->size && rc == RC_OK; m++) {
    struct greeting *from = &g->window->greetings[m];
    const struct hello *h = &from->hello;
    bool came;
    int bytes = 0;
    if (from->came) continue;
    rc = look(&from->request, &came, &bytes, "joining", err);
    if (rc != RC_OK || !came) continue;
    *moved = true;
    from->came = bytes == (int)sizeof *h && h->serial == g->serial && h->rank == m && h->size == seat->size;
    if (from->came)
      --*missing;
    else /* of an earlier group with this tag */
      rc = hello_await(g, from, seat->places[m], err);
  }
  return rc;
}

static enum rc seat_all(struct group *g, const struct fabric_seat *seat, struct member_wait *wait, struct err *err) {
  struct greeting *to = g->window->greetings;
  enum rc rc = RC_OK;
  for (int m = 1; m < seat->size && rc == RC_OK; m++) {
    to[m].receiving = false;
    to[m].seating = seating_of(g->serial, m, seat->size, seat->places);
    rc = send_to(g, (int)seat->places[m], &to[m].seating, sizeof to[m].seating, &to[m].request, "joining", err);
  }
  for (int m = 1; m < seat->size && rc == RC_OK;) {
    bool left = false;
    rc = look(&to[m].request, &left, NULL, "joining", err);
    if (left) m++;
    if (rc == RC_OK && !left) rc = member_wait_on(wait, &g->member, false, "joining", err);
  }
  const struct seating own = seating_of(g->serial, 0, seat->size, seat->places);
  sit(g, &own);
  return rc;
}

static enum rc join_as_root(struct group *g, const struct fabric_seat *seat, int64_t wait_ms, struct err *err) {
  struct member_wait wait = member_wait_start(wait_ms);
  int missing = seat->size - 1, first = 1;
  enum rc rc = RC_OK;
  for (int m = 1; m < seat->size && rc == RC_OK; m++)
    rc = hello_await(g, &g->window->greetings[m], seat->places[m], err);
  while (rc == RC_OK && missing > 0) {
    bool moved = false;
    rc = hellos_look(g, seat, &missing, &moved, err);
    if (rc == RC_OK && missing > 0) rc = member_wait_on(&wait, &g->member, moved, "joining", err);
  }
  if (rc == RC_OK) return seat_all(g, seat, &wait, err);
  while (g->window->greetings[first].came) first++;
  return err_set(err, rc, NULL, "%d of %d members had not come, member %d for one, when joining was given up", missing,
                 seat->size - 1, first);
}

static enum rc join_as_member(struct group *g, int64_t root, int64_t wait_ms, struct err *err) {
  struct greeting *mine = &g->window->greetings[0], *answer = &g->window->greetings[1];
  struct member_wait wait = member_wait_start(wait_ms);
  bool came = false;
  mine->hello = (struct hello){.serial = g->serial, .rank = g->member.comm.rank, .size = g->member.comm.size};
  answer->receiving = true;
  enum rc rc = receive_from(g, (int)root, &answer->seating, sizeof answer->seating, &answer->request, "joining", err);
  if (rc == RC_OK) rc = send_to(g, (int)root, &mine->hello, sizeof mine->hello, &mine->request, "joining", err);
  while (rc == RC_OK && !came) {
    int bytes = 0;
    rc = look(&answer->request, &came, &bytes, "joining", err);
    if (came && (bytes != (int)sizeof answer->seating || answer->seating.serial != g->serial))
      rc = err_set(err, RC_UNAVAILABLE, NULL, "joining: the root answered %d bytes of another group", bytes);
    if (rc == RC_OK && !came) rc = member_wait_on(&wait, &g->member, false, "joining", err);
  }
  if (rc == RC_OK) sit(g, &answer->seating);
  return rc;
}

static struct group *group_new(struct fabric_mpi *f, const struct fabric_seat *seat, uint64_t serial) {
  struct group *g = calloc(1, sizeof *g);
  if (g) g->window = window_new(seat->size);
  if (!g || !g->window) {
    free(g);
    return NULL;
  }
  membership_begin(&g->member, f->fabric.kind, seat);
  g->member.comm.broadcast = group_broadcast;
  g->member.comm.free = group_free;
  g->fabric = f;
  g->serial = serial;
  g->tag = TAG_FIRST + (int)(serial % TAGS);
  return g;
}

static enum rc mpi_join(struct fabric *fabric, struct comm **out, const struct fabric_seat *seat, int64_t wait_ms,
                        struct err *err) {
  struct fabric_mpi *f = fabric_of(fabric);
  uint64_t serial;
  int64_t root;
  left_look(f);
  enum rc rc = fabric_seat_check(seat->token, seat->rank, seat->size, err);
  if (rc == RC_OK) rc = fabric_token_read_place(seat->token, &serial, &root, f->world->places, err);
  for (int m = 1; rc == RC_OK && seat->rank == 0 && m < seat->size; m++) {
    if (seat->places[m] < 0 || seat->places[m] >= f->world->places || seat->places[m] == fabric->place)
      rc = err_set(err, RC_INVALID, "place", "expected another of %d places for member %d, got %lld", f->world->places,
                   m, (long long)seat->places[m]);
  }
  if (rc == RC_OK && (root == fabric->place) != (seat->rank == 0))
    rc = err_set(err, RC_INVALID, "token", "expected rank 0 at the root's place and another one elsewhere, got rank %d",
                 seat->rank);
  if (rc != RC_OK) return rc;
  struct group *g = group_new(f, seat, serial);
  if (!g)
    return err_set(err, RC_NO_MEMORY, NULL, "a communicator needs %zu bytes, which were refused",
                   sizeof(struct window));
  rc = seat->rank == 0 ? join_as_root(g, seat, wait_ms, err) : join_as_member(g, root, wait_ms, err);
  if (rc != RC_OK) {
    group_free(&g->member.comm);
    return rc;
  }
  *out = &g->member.comm;
  return RC_OK;
}

static enum rc mpi_token(struct fabric *fabric, char out[FABRIC_TOKEN_MAX], struct err *err) {
  (void)err;
  fabric_token_write_place(out, ++fabric_of(fabric)->serial, fabric->place);
  return RC_OK;
}

static void mpi_free(struct fabric *fabric) {
  struct fabric_mpi *f = fabric_of(fabric);
  left_look(f);
  mpi_world_give(f->world, f->left != NULL, END_MS);
  free(f);
}

enum rc fabric_mpi_create(struct fabric **out, bool trainer, int64_t start_ms, struct err *err) {
  struct fabric_mpi *f = calloc(1, sizeof *f);
  if (!f) return err_set(err, RC_NO_MEMORY, NULL, "the fabric's state was refused memory");
  f->fabric = (struct fabric){.kind = "mpi", .token = mpi_token, .join = mpi_join, .free = mpi_free};
  enum rc rc = mpi_world_take(&f->world, trainer ? MPI_ROLE_TRAINER : MPI_ROLE_SERVER, trainer, start_ms, err);
  if (rc == RC_OK && trainer && !f->world->several_threads) {
    mpi_world_give(f->world, false, END_MS);
    rc = err_set(err, RC_UNSUPPORTED, "fabric", "this MPI takes no calls from several threads, which a fabric needs");
  }
  if (rc != RC_OK) {
    free(f);
    return rc;
  }
  f->fabric.place = f->world->place;
  f->fabric.machines = f->world->all_machines;
  *out = &f->fabric;
  return RC_OK;
}
