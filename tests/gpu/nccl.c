// NCCL for machines without a GPU, named libnccl.so.2, beside tests/gpu/driver.c, whose device keeps its memory on the host. What goes from
// rank to rank goes through files of a folder that the unique id names, be the ranks threads or processes. As NCCL does, it refuses two
// ranks on one device, and a communicator is in progress until all has come. With REHEARSAL_NCCL=garbles the numbers that ranks send come as
// others, and with REHEARSAL_NCCL=loses they do not come.
#include <cuda.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 5, SYSTEM = 2, IN_PROGRESS = 7, F32 = 7, MOST_RANKS = 16, MOST_CALLS = 4096 };

typedef struct { char folder[128]; } Id;
typedef struct { size_t size; unsigned magic, version; int blocking; } Config;
typedef struct Comm Comm;
typedef struct { int sends; char *at; size_t length; int peer; Comm *comm; char name[256]; } Call;
struct Comm {
  char folder[128];
  int rank, count;
  // How many messages have gone to each rank, and come from it.
  long sent[MOST_RANKS], received[MOST_RANKS];
  // What is still to come.
  Call *coming;
  int left;
  CUdevice devices[MOST_RANKS];
  int is_checked;
};

static atomic_long messages;
static _Thread_local Call calls[MOST_CALLS];
static _Thread_local int given, open_groups;

static int refuse(const char *what, long a, long b) {
  fprintf(stderr, "rehearsal: NCCL refuses: %s %ld %ld\n", what, a, b);
  return INVALID;
}

static void report(void) { fprintf(stderr, "rehearsal: %ld messages by NCCL\n", messages); }

int ncclGetUniqueId(Id *id) {
  // The folder that tests/gpu/rehearse makes, and removes at the end.
  const char *room = getenv("XDG_CACHE_HOME");
  if (!room) return SYSTEM;
  snprintf(id->folder, sizeof id->folder, "%s/nccl-XXXXXX", room);
  return mkdtemp(id->folder) ? SUCCESS : SYSTEM;
}

const char *ncclGetErrorString(int said) { return said == SYSTEM ? "no folder for messages (tests/gpu/nccl.c)" : "refused by tests/gpu/nccl.c"; }

static int send_now(Comm *comm, int peer, const void *bytes, size_t length) {
  char name[256], part[300];
  snprintf(name, sizeof name, "%s/%d-%d-%ld", comm->folder, comm->rank, peer, comm->sent[peer]++);
  snprintf(part, sizeof part, "%s.part", name);
  FILE *file = fopen(part, "w");
  if (!file) return SYSTEM;
  int is_whole = fwrite(bytes, 1, length, file) == length;
  messages++;
  // It comes to its name when all of it is written.
  return !fclose(file) && is_whole && !rename(part, name) ? SUCCESS : SYSTEM;
}

static int receive_later(Comm *comm, int peer, void *at, size_t length) {
  Call *of = &comm->coming[comm->left++];
  *of = (Call){0, at, length, peer, comm, ""};
  snprintf(of->name, sizeof of->name, "%s/%d-%d-%ld", comm->folder, peer, comm->rank, comm->received[peer]++);
  return SUCCESS;
}

// Takes what has come.
static int look(Comm *comm) {
  for (; comm->left; comm->left--) {
    Call *of = &comm->coming[comm->left - 1];
    FILE *file = fopen(of->name, "r");
    if (!file) return SUCCESS;
    struct stat found;
    fstat(fileno(file), &found);
    int is_whole = (size_t)found.st_size == of->length && fread(of->at, 1, of->length, file) == of->length;
    fclose(file);
    unlink(of->name);
    if (!is_whole) return refuse("a message of another length than expected", found.st_size, of->length);
  }
  return SUCCESS;
}

int ncclCommInitRankConfig(Comm **made, int count, Id id, int rank, Config *config) {
  static atomic_int seen;
  if (!seen++) atexit(report);
  if (config->magic != 0xcafebeef || config->blocking || config->version < 21400) return refuse("configuration", config->magic, config->version);
  if (count > MOST_RANKS || rank >= count) return refuse("rank", rank, count);
  Comm *comm = *made = calloc(1, sizeof(Comm));
  comm->rank = rank, comm->count = count, comm->coming = calloc(MOST_CALLS, sizeof(Call));
  memcpy(comm->folder, id.folder, sizeof id.folder);
  CUdevice own;
  if (cuCtxGetDevice(&own)) return INVALID;
  // All tell each other their devices.
  for (int peer = 0; peer < count; peer++)
    if (send_now(comm, peer, &own, sizeof own)) return SYSTEM;
  for (int peer = 0; peer < count; peer++) receive_later(comm, peer, &comm->devices[peer], sizeof(CUdevice));
  return IN_PROGRESS;
}

int ncclCommGetAsyncError(Comm *comm, int *state) {
  *state = look(comm);
  if (comm->left) *state = *state ? *state : IN_PROGRESS;
  for (int rank = 0; rank < comm->count && !*state && !comm->is_checked; rank++)
    for (int other = 0; other < rank; other++)
      if (comm->devices[other] == comm->devices[rank]) *state = refuse("two ranks on one device", other, rank);
  comm->is_checked |= !*state;
  return SUCCESS;
}

int ncclCommAbort(Comm *comm) { rmdir(comm->folder); free(comm->coming); free(comm); return SUCCESS; }

int ncclGroupStart(void) { return open_groups++, SUCCESS; }

static int call(int sends, void *at, size_t length, int type, int peer, Comm *comm, void *stream) {
  if (!open_groups || !stream || type != F32 || !at || peer < 0 || peer >= comm->count || given == MOST_CALLS) return refuse("a call for rank", peer, given);
  calls[given++] = (Call){sends, at, length * sizeof(float), peer, comm, ""};
  return SUCCESS;
}

int ncclSend(const void *from, size_t length, int type, int peer, Comm *comm, void *stream) { return call(1, (void *)from, length, type, peer, comm, stream); }
int ncclRecv(void *into, size_t length, int type, int peer, Comm *comm, void *stream) { return call(0, into, length, type, peer, comm, stream); }

int ncclBroadcast(const void *from, void *into, size_t length, int type, int root, Comm *comm, void *stream) {
  if (comm->rank != root) return call(0, into, length, type, root, comm, stream);
  int said = SUCCESS;
  for (int peer = 0; peer < comm->count && !said; peer++)
    if (peer != root) said = call(1, (void *)from, length, type, peer, comm, stream);
  return said;
}

int ncclGroupEnd(void) {
  if (--open_groups) return SUCCESS;
  int said = SUCCESS;
  const char *fault = getenv("REHEARSAL_NCCL");
  for (int nth = 0; nth < given && !said; nth++) {
    Call *of = &calls[nth];
    if (fault && of->sends) {
      if (!strcmp(fault, "loses")) continue;
      *(float *)of->at += 1;
    }
    said = of->sends ? send_now(of->comm, of->peer, of->at, of->length) : receive_later(of->comm, of->peer, of->at, of->length);
  }
  given = 0;
  return said ? said : IN_PROGRESS;
}
