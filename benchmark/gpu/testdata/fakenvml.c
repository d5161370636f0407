// A libnvidia-ml.so.1 for tests: only what benchmark/gpu calls. FAKE_NVML is a list of "key=value" words; -DBARE leaves out all that
// gpu must live without, -DOLD also one that it needs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, LOST = 15 };

static long get(const char *key, long otherwise) {
  const char *at = getenv("FAKE_NVML");
  size_t n = strlen(key);
  for (; at && *at; at = strchr(at, ' '), at = at ? at + 1 : 0)
    if (!strncmp(at, key, n) && at[n] == '=') return atol(at + n + 1);
  return otherwise;
}
// a card is its index + 1; the one named by "lost" answers nothing
__attribute__((unused)) static int lost(void *d) { return get("lost", -1) == (long)d - 1; }

int nvmlInit_v2(void) { return (int)get("init", OK); }
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)get("count", 2); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return i < (unsigned)get("count", 2) ? OK : INVALID; }
#ifndef OLD
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) {
  if (lost(d)) return LOST;
  snprintf(s, n, "GPU-fa4e0000-0000-0000-0000-%012ld", (long)d);
  return OK;
}
#endif
int nvmlDeviceGetName(void *d, char *s, unsigned n) {
  snprintf(s, n, (long)d == 1 ? "NVIDIA GeForce RTX 4090" : "NVIDIA A100-SXM4-80GB");
  return OK;
}
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) {
  if (get("shared_memory", 0)) return NOT_SUPPORTED;
  m[0] = (long)d == 1 ? 24564ULL << 20 : 81920ULL << 20;
  m[1] = m[0], m[2] = 0;
  return OK;
}
#if !defined BARE && !defined OLD
int nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "580.95.05"); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 12080; return OK; }
struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *d, struct pci *p) { snprintf(p->bus_id, 32, "00000000:0%ld:00.0", (long)d); return OK; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *v) { (void)d; *v = 1; return OK; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *v) { (void)d; *v = 4; return OK; }
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *v) { *v = (long)d == 1 ? 8 : 16; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *v) { (void)d; *v = 16; return OK; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) { *major = 8; *minor = (long)d == 1 ? 9 : 0; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *v) { (void)d; *v = 450000; return OK; }
int nvmlDeviceGetEccMode(void *d, int *now, int *next) { if ((long)d == 1) return NOT_SUPPORTED; *now = *next = 1; return OK; }
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *next) { if ((long)d == 1) return NOT_SUPPORTED; *now = 0; *next = 1; return OK; }
#endif
