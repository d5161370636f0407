// A libcuda.so.1 for tests. It checks what arrives over the calling convention, and it really computes: the kernels' own source is
// compiled for the CPU (kernels/hostemu.h) and run on the caller's data, so that what a test sees checked is a result. Time is its own:
// each launch takes cuda.launch_us microseconds (for the rates: of 16 rounds). A launch that repeats the one before is not computed again.
// The scenario is the file of fakenvml.c:
//   cuda.cc 89, cuda.version 12080, cuda.sms 1, cuda.bus 384, cuda.total_mib 24210, cuda.free 2097152, cuda.uuid 0x1000, cuda.bus_id 1
//   cuda.err.FUNCTION 999   the function fails;   cuda.hang.FUNCTION 1   it never comes back;   cuda.load.sm_89 222   PTX for that target is refused
//   cuda.wrong.KERNEL 1     a bit of every 64th byte of what the kernel wrote is turned, of all but the first, an odd number of them; of a few bytes the last
#define HOST_EMU
#include "../kernels/bench.cu"

#include <map>
#include <string>
#include <unistd.h>
typedef int R;
static bool honest;
extern "C" void emulate_honestly() { honest = true; } // without a scenario: what a card's results are compared with
static long long look(const std::string &key, long long otherwise) {
  const char *path = honest ? 0 : getenv("FAKE_NVML");
  FILE *f = path ? fopen(path, "r") : 0;
  if (!f) return otherwise;
  char k[96];
  long long v, found = otherwise;
  while (fscanf(f, "%95s %lli", k, &v) == 2)
    if (key == k) found = v;
  fclose(f);
  return found;
}
static __thread void *current; // the context is one of the thread
static int context;
static double now_ms;
static long long used;
static std::map<char *, size_t> memory;
static std::string before; // the last launch
static R gate(const char *name) {
  while (look(std::string("cuda.hang.") + name, 0)) pause();
  return (R)look(std::string("cuda.err.") + name, 0);
}
#define GATE if (R r = gate(__func__)) return r
#define CONTEXT GATE; if (!current) return 201

extern "C" {
R cuInit(u32 flags) { GATE; return flags ? 1 : 0; }
R cuDriverGetVersion(int *v) { GATE; *v = (int)look("cuda.version", 12080); return 0; }
R cuGetErrorName(int e, const char **s) { *s = e == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : e == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE"; return 0; }
R cuDeviceGetCount(int *n) { GATE; *n = 1; return 0; }
R cuDeviceGet(int *d, int i) { GATE; *d = 40 + i; return i ? 101 : 0; } // a device is not its index
R cuDeviceGetUuid_v2(unsigned char *u, int d) {
  GATE;
  if (d != 40) return 101;
  long long v = look("cuda.uuid", 0x1000);
  memset(u, 0, 16);
  u[0] = 0xfa, u[1] = 0x4e;
  for (int i = 15; i > 9; i--, v >>= 8) u[i] = (unsigned char)v;
  return 0;
}
R cuDeviceGetPCIBusId(char *s, int n, int d) { GATE; if (d != 40) return 101; snprintf(s, n, "0000:%02llx:00.0", look("cuda.bus_id", 1)); return 0; }
R cuDeviceGetAttribute(int *v, int a, int d) {
  GATE;
  if (d != 40) return 101;
  int cc = (int)look("cuda.cc", 89);
  *v = a == 16 ? (int)look("cuda.sms", 1) : a == 37 ? (int)look("cuda.bus", 384) : a == 38 ? 65536 : a == 75 ? cc / 10 : a == 76 ? cc % 10 : -1;
  return 0;
}
R cuDeviceTotalMem_v2(u64 *n, int d) { GATE; *n = (u64)look("cuda.total_mib", 24210) << 20; return d == 40 ? 0 : 101; }
R cuDevicePrimaryCtxRetain(void **c, int d) { GATE; *c = &context; return d == 40 ? 0 : 101; }
R cuDevicePrimaryCtxRelease_v2(int d) { GATE; return d != 40 ? 101 : used ? 1 : 0; } // whoever leaves memory behind is told
R cuCtxSetCurrent(void *c) { GATE; if (c && c != &context) return 1; current = c; return 0; }
R cuModuleLoadDataEx(void **m, const char *text, u32 n, int *options, void **values) {
  CONTEXT;
  if (n != 2 || options[0] != 5 || options[1] != 6 || (size_t)values[1] != 4096) return 1;
  for (const char *target : {"sm_75", "sm_80", "sm_89"})
    if (strstr(text, (std::string(".target ") + target).c_str()))
      if (R r = (R)look(std::string("cuda.load.") + target, 0)) { snprintf((char *)values[0], 4096, "refused by the fake"); return r; }
  *m = strdup(text);
  return strstr(text, ".version") ? 0 : 218;
}
R cuModuleUnload(void *m) { CONTEXT; free(m); return 0; }
R cuModuleGetFunction(void **f, const char *m, const char *name) {
  CONTEXT;
  if (!strstr(m, (std::string(".entry ") + name + "(").c_str())) return 500;
  static std::map<std::string, std::string> names;
  *f = (void *)(names[name] = name, names.find(name)->second.c_str());
  return 0;
}
R cuMemGetInfo_v2(u64 *free, u64 *total) { CONTEXT; *total = (u64)look("cuda.total_mib", 24210) << 20, *free = (u64)(look("cuda.free", 2 << 20) - used); return 0; }
R cuMemAlloc_v2(char **p, size_t n) {
  CONTEXT;
  if (!n || used + (long long)n > look("cuda.free", 2 << 20)) return 2;
  used += (long long)n;
  *p = (char *)aligned_alloc(256, (n + 255) & ~255ull);
  memory[*p] = n;
  return 0;
}
R cuMemFree_v2(char *p) { CONTEXT; if (!memory.count(p)) return 1; used -= (long long)memory[p]; memory.erase(p); free(p); before.clear(); return 0; }
R cuMemHostAlloc(void **p, size_t n, u32 flags) { CONTEXT; *p = flags ? 0 : aligned_alloc(4096, n); return *p ? 0 : 1; }
R cuMemFreeHost(void *p) { CONTEXT; free(p); return 0; }
static int stream;
static bool inside(const char *p, size_t n) {
  auto at = memory.upper_bound((char *)p);
  return at != memory.begin() && (--at, p >= at->first && p + n <= at->first + at->second);
}
R cuMemcpyHtoDAsync_v2(char *d, const void *s, size_t n, void *st) { CONTEXT; if (st != &stream || !inside(d, n)) return 1; memcpy(d, s, n), now_ms += look("cuda.launch_us", 30000) / 1e3, before.clear(); return 0; }
R cuMemcpyDtoHAsync_v2(void *d, const char *s, size_t n, void *st) { CONTEXT; if (st != &stream || !inside(s, n)) return 1; memcpy(d, s, n), now_ms += look("cuda.launch_us", 30000) / 1e3; return 0; }
R cuStreamCreate(void **s, u32 flags) { CONTEXT; *s = &stream; return flags == 1 ? 0 : 1; }
R cuStreamSynchronize(void *s) { CONTEXT; return s != &stream; }
R cuStreamDestroy_v2(void *s) { CONTEXT; return s != &stream; }
R cuEventCreate(double **e, u32 flags) { CONTEXT; *e = new double(-1); return flags; }
R cuEventRecord(double *e, void *s) { CONTEXT; *e = now_ms; return s != &stream; }
R cuEventSynchronize(double *e) { CONTEXT; return *e < 0; }
R cuEventElapsedTime(float *ms, double *a, double *b) { CONTEXT; *ms = (float)(*b - *a); return 0; }
R cuEventDestroy_v2(double *e) { CONTEXT; delete e; return 0; }

#define P(T, i) (*(T *)p[i])
#define RATES(name, T) if (k == #name) { out = 0; rounds = P(u32, 1); f = [=] { name(P(T *, 0), P(u32, 1)); }; }
R cuLaunchKernel(const char *name, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared, void *st, void **p, void **extra) {
  CONTEXT;
  if (gz != 1 || by != 1 || bz != 1 || shared || st != &stream || extra || !gx || !gy || bx != 256) return 1;
  std::string k = name, key = k;
  std::function<void()> f;
  int out = -1, n = 0; // the parameter that is written; how many there are
  u32 rounds = 16;
  if (k == "mem_fill") out = 0, n = 4, f = [=] { mem_fill(P(u64 *, 0), P(u64, 1), P(u64, 2), P(u64, 3)); };
  if (k == "mem_verify") out = 4, n = 5, f = [=] { mem_verify(P(u64 *, 0), P(u64, 1), P(u64, 2), P(u64, 3), P(u64 *, 4)); };
  if (k == "mem_read") out = 2, n = 3, f = [=] { mem_read(P(u4 *, 0), P(u64, 1), P(u32 *, 2)); };
  if (k == "mem_write") out = 0, n = 2, f = [=] { mem_write(P(u4 *, 0), P(u64, 1), P(u32, 2)); };
  if (k == "mem_copy") out = 1, n = 3, f = [=] { mem_copy(P(u4 *, 0), P(u4 *, 1), P(u64, 2)); };
  if (k == "mem_triad") out = 2, n = 3, f = [=] { mem_triad(P(f4 *, 0), P(f4 *, 1), P(f4 *, 2), P(float, 3), P(u64, 4)); };
  if (k == "fill_f32") out = 0, n = 3, f = [=] { fill_f32(P(float *, 0), P(u64, 1), P(u64, 2)); };
  if (k == "fill_bf16") out = 0, n = 3, f = [=] { fill_bf16(P(unsigned short *, 0), P(u64, 1), P(u64, 2)); };
  if (k == "sgemm") out = 2, n = 3, f = [=] { sgemm(P(float *, 0), P(float *, 1), P(float *, 2), P(u32, 3)); };
  if (k == "bf16_gemm") out = 2, n = 3, f = [=] { bf16_gemm(P(unsigned short *, 0), P(unsigned short *, 1), P(float *, 2), P(u32, 3)); };
  if (k == "fp32_rate") out = 0, rounds = P(u32, 1), f = [=] { fp32_rate(P(float *, 0), P(u32, 1), P(float, 2), P(float, 3)); };
  if (k == "fp64_rate") out = 0, rounds = P(u32, 1), f = [=] { fp64_rate(P(double *, 0), P(u32, 1), P(double, 2), P(double, 3)); };
  RATES(f16_k8_rate, float) RATES(bf16_rate, float) RATES(f16_rate, float) RATES(f16acc_rate, u32)
  RATES(tf32_rate, float) RATES(s8_rate, u32) RATES(e4m3_rate, float) RATES(f64_rate, double)
  if (!f) return 500;
  now_ms += look("cuda.launch_us", 30000) / 1e3 * rounds / 16;
  for (int i = 0; i < n; i++) key.append((char *)p[i], 8);
  key += std::to_string(rounds) + "/" + std::to_string(gx) + "/" + std::to_string(gy);
  if (key == before && k != "mem_verify") return 0;
  before = key;
  static const std::string fibers_for = " sgemm bf16_gemm f16_k8_rate bf16_rate f16_rate f16acc_rate tf32_rate s8_rate e4m3_rate f64_rate ";
  launch(gx, gy, bx, f, fibers_for.find(" " + k + " ") == std::string::npos);
  if (out >= 0 && look("cuda.wrong." + k, 0))
    for (size_t n = memory[P(char *, out)], i = n < 72 ? n - 1 : 71; i < n; i += 64) P(char *, out)[i] ^= 0x20;
  return 0;
}
}
