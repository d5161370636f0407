// A libnvidia-ml.so.1 for tests: the functions that benchmark/gpu calls, and no other. What it answers stands in the file named by
// FAKE_NVML as lines of "key value", read again at every call, so that a test can pull the card off the bus while the program runs:
//   count 2            cards; their kind is "model": 0 is a GeForce, 1 an A100 with ECC and MIG
//   1.width 1          of card 1 only; without "1." of all
//   err.FUNCTION 999   the function fails with that code;  hang.FUNCTION 1  it never comes back
//   lost 1             every question about the card is answered with GPU_IS_LOST
//   xid 79             told once for each new value
// -DBARE leaves out all that gpu must live without, -DOLD also one function that it needs. Any function can be left out by
// -Dname=absent_name. Functions that were called are written to FAKE_NVML_LOG, if that is set.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int R;
typedef unsigned u;
typedef unsigned long long U;
typedef void *D; // 0x1000 + index; a MIG slice is 0x2000 + 0x100 * its card + its own index
enum { OK, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, LOST = 15 };

static long long look(const char *key, long long otherwise) {
  const char *path = getenv("FAKE_NVML");
  FILE *f = path ? fopen(path, "r") : 0;
  char k[96];
  long long v, found = otherwise;
  if (!f) return otherwise;
  while (fscanf(f, "%95s %lli", k, &v) == 2)
    if (!strcmp(k, key)) found = v;
  fclose(f);
  return found;
}

static long index_of(D d) { return (long)d >= 0x2000 ? ((long)d - 0x2000) >> 8 : (long)d - 0x1000; }

static long long get(D d, const char *key, long long otherwise) {
  char k[96];
  if (!d) return look(key, otherwise);
  snprintf(k, sizeof k, "%ld.%s", index_of(d), key);
  return look(k, look(key, otherwise));
}

static R gate(D d, const char *name) {
  char k[96];
  const char *log = getenv("FAKE_NVML_LOG");
  FILE *f = log ? fopen(log, "a") : 0;
  if (f) fprintf(f, "%s\n", name), fclose(f);
  snprintf(k, sizeof k, "hang.%s", name);
  while (get(d, k, 0)) pause();
  if (d && get(d, "lost", 0)) return LOST;
  snprintf(k, sizeof k, "err.%s", name);
  return (R)get(d, k, OK);
}
#define GATE(d) do { R r_ = gate(d, __func__); if (r_) return r_; } while (0)
#define A100(d) (get(d, "model", 0) == 1)
#define MIG(d) ((long)(d) >= 0x2000)
// a number of a card; -1 is not supported
#define NUMBER(type, name, key, otherwise) \
  R name(D d, type *v) { GATE(d); long long x = get(d, key, otherwise); if (x == -1) return NOT_SUPPORTED; *v = (type)x; return OK; }

R nvmlInit_v2(void) { GATE(0); return OK; }
R nvmlShutdown(void) { GATE(0); return OK; }
R nvmlDeviceGetCount_v2(u *n) { GATE(0); *n = (u)get(0, "count", 1); return OK; }
R nvmlDeviceGetHandleByIndex_v2(u i, D *d) { D x = (D)(0x1000L + i); if (i >= (u)get(0, "count", 1)) return INVALID; *d = x; GATE(0); return get(x, "nohandle", 0) ? LOST : OK; }
#ifndef OLD
R nvmlDeviceGetUUID(D d, char *s, u n) {
  GATE(d);
  snprintf(s, n, MIG(d) ? "MIG-51a4e000-0000-0000-0000-%012lx" : "GPU-fa4e0000-0000-0000-0000-%012lx", (long)d);
  return OK;
}
#endif
R nvmlDeviceGetName(D d, char *s, u n) {
  GATE(d);
  snprintf(s, n, MIG(d) ? "NVIDIA A100-SXM4-80GB MIG 3g.40gb" : A100(d) ? "NVIDIA A100-SXM4-80GB" : "NVIDIA GeForce RTX 4090");
  return OK;
}
R nvmlDeviceGetMemoryInfo(D d, U *m) {
  GATE(d);
  if (get(d, "shared_memory", 0)) return NOT_SUPPORTED;
  m[0] = (MIG(d) ? 40192ULL : A100(d) ? 81920ULL : 24564ULL) << 20;
  m[2] = 300ULL << 20, m[1] = m[0] - m[2];
  return OK;
}
#if !defined BARE && !defined OLD
R nvmlSystemGetDriverVersion(char *s, u n) { GATE(0); snprintf(s, n, "580.95.05"); return OK; }
R nvmlSystemGetCudaDriverVersion_v2(int *v) { GATE(0); *v = 12080; return OK; }
R nvmlDeviceGetHandleByUUID(const char *s, D *d) {
  GATE(0);
  for (long i = 0; i < get(0, "count", 1); i++) {
    char want[64];
    snprintf(want, sizeof want, "GPU-fa4e0000-0000-0000-0000-%012lx", 0x1000 + i);
    if (!strcmp(s, want)) { *d = (D)(0x1000 + i); return OK; }
  }
  return NOT_FOUND;
}
R nvmlDeviceGetPciInfo_v3(D d, char *p) { GATE(d); memset(p, 0, 68); snprintf(p + 36, 32, "00000000:%02lX:00.0", index_of(d) + 1); return OK; }
R nvmlDeviceGetCudaComputeCapability(D d, int *major, int *minor) { GATE(d); *major = 8, *minor = A100(d) ? 0 : 9; return OK; }
R nvmlDeviceGetVbiosVersion(D d, char *s, u n) { GATE(d); snprintf(s, n, "95.02.3c.40.b8"); return OK; }
R nvmlDeviceGetEccMode(D d, int *now, int *next) { GATE(d); if (!A100(d)) return NOT_SUPPORTED; *now = *next = (int)get(d, "ecc", 1); return OK; }
R nvmlDeviceGetTotalEccErrors(D d, int kind, int lifetime, U *n) {
  GATE(d);
  if (!A100(d) || !get(d, "ecc", 1)) return NOT_SUPPORTED;
  *n = (U)get(d, kind ? lifetime ? "ecc_unc_life" : "ecc_unc" : lifetime ? "ecc_cor_life" : "ecc_cor", 0);
  return OK;
}
R nvmlDeviceGetRemappedRows(D d, u *cor, u *unc, u *pending, u *failure) {
  GATE(d);
  if (!A100(d)) return NOT_SUPPORTED;
  *cor = 0, *unc = (u)get(d, "rows", 0), *pending = (u)get(d, "rows_pending", 0), *failure = (u)get(d, "rows_failure", 0);
  return OK;
}
R nvmlDeviceGetMigMode(D d, u *now, u *next) { GATE(d); if (!A100(d)) return NOT_SUPPORTED; *now = *next = (u)get(d, "mig", 0); return OK; }
R nvmlDeviceGetMaxMigDeviceCount(D d, u *n) { GATE(d); *n = A100(d) ? 7 : 0; return OK; }
R nvmlDeviceGetMigDeviceHandleByIndex(D d, u i, D *slice) {
  GATE(d);
  if (i != 0 && i != 3) return NOT_FOUND; // slices lie where they like
  *slice = (D)(0x2000L + (index_of(d) << 8) + i);
  return OK;
}
R nvmlDeviceGetTemperature(D d, int sensor, u *t) { GATE(d); *t = (u)get(d, "temp", 41); return sensor ? INVALID : OK; }
R nvmlDeviceGetTemperatureThreshold(D d, int which, u *t) { GATE(d); *t = which == 1 ? 93 : 98; return OK; }
R nvmlDeviceGetClockInfo(D d, int which, u *mhz) { GATE(d); *mhz = (u)get(d, which == 2 ? "mem_clock" : "sm_clock", which == 2 ? 10501 : 2520); return OK; }
struct field { u id, scope; long long at, latency; u type; R result; union { u v; U w; } value; };
R nvmlDeviceGetFieldValues(D d, int n, struct field *f) {
  GATE(d);
  for (; n--; f++) {
    long long x = f->id == 230 ? get(d, "recovery", 0) : f->id == 82 ? get(d, "memory_temp", A100(d) ? 55 : -1) : -1;
    f->result = x == -1 ? NOT_SUPPORTED : OK, f->type = 1, f->value.v = (u)x;
  }
  return OK;
}
struct process { u pid; U memory; u gi, ci; };
static R list(D d, const char *key, u *n, struct process *p) {
  long long pid = get(d, key, 0);
  if (!pid) { *n = 0; return OK; }
  if (*n < 1) { *n = 1; return SMALL; }
  *n = 1, p[0] = (struct process){(u)pid, get(d, "process_memory", 512 << 20), -1, -1};
  return OK;
}
R nvmlDeviceGetComputeRunningProcesses_v3(D d, u *n, struct process *p) { GATE(d); return list(d, "computes", n, p); }
R nvmlDeviceGetGraphicsRunningProcesses_v3(D d, u *n, struct process *p) { GATE(d); return list(d, "draws", n, p); }
NUMBER(u, nvmlDeviceGetCurrPcieLinkGeneration, "gen", 1)
NUMBER(u, nvmlDeviceGetMaxPcieLinkGeneration, "gen_max", 4)
NUMBER(u, nvmlDeviceGetCurrPcieLinkWidth, "width", 16)
NUMBER(u, nvmlDeviceGetMaxPcieLinkWidth, "width_max", 16)
NUMBER(u, nvmlDeviceGetPcieReplayCounter, "replays", 0)
NUMBER(u, nvmlDeviceGetPowerUsage, "power", 21000)
NUMBER(u, nvmlDeviceGetEnforcedPowerLimit, "power_limit", 450000)
NUMBER(u, nvmlDeviceGetMemoryBusWidth, "bus", A100(d) ? 5120 : 384)
NUMBER(U, nvmlDeviceGetCurrentClocksEventReasons, "reasons", 1)
NUMBER(U, nvmlDeviceGetCurrentClocksThrottleReasons, "reasons", 1)
NUMBER(u, nvmlDeviceGetPersistenceMode, "persistence", 0)
NUMBER(u, nvmlDeviceGetDisplayActive, "display", 0)
R nvmlEventSetCreate(D *s) { GATE(0); *s = (D)0x3000L; return OK; }
R nvmlEventSetFree(D s) { (void)s; GATE(0); return OK; }
R nvmlDeviceRegisterEvents(D d, U types, D s) { (void)types, (void)s; GATE(d); return OK; }
struct event { D d; U type, data; u gi, ci; };
R nvmlEventSetWait_v2(D s, struct event *e, u ms) {
  static long long told;
  (void)s;
  GATE(0);
  for (u t = 0;; t += 10) {
    long long x = get(0, "xid", 0);
    if (x && x != told) { *e = (struct event){(D)0x1000L, 8, (U)x, -1, -1}; told = x; return OK; }
    if (t >= ms) return TIMEOUT;
    usleep(10000);
  }
}
#endif
