// As much of a GPU, on the CPU, as the kernels of bench.cu need to be checked where there is no card: one block at a time, every thread a
// fiber, an instruction of a whole warp done when its 32 threads have come to it, and copies that run aside left undone until the wait
// that needs them, so that a missing wait shows.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#define __shared__
#define KERNEL extern "C" void
#define BOUNDS(threads, blocks)
#define DEV static inline
#define UNROLL

struct Fiber { ucontext_t first; jmp_buf at; char *stack; bool begun, done; }; // _setjmp, once it has begun: it makes no system call
struct Copy { char *to; const char *from; };
struct Warp { int arrived = 0; u32 turn = 0; void *arg[32]; };
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static std::vector<std::vector<std::vector<Copy>>> copies; // of each thread, in groups; the last group is the open one
static std::function<void()> kernel;
static jmp_buf scheduler;
static u32 thread_, block_[2], blocks_, threads_, barrier_turn;
static int at_barrier;
static char *shared_;

static inline void pass() { if (!_setjmp(fibers[thread_].at)) _longjmp(scheduler, 1); }
static void enter() { kernel(); fibers[thread_].done = true; pass(); }
static inline u32 tid() { return thread_; }
static inline u32 ntid() { return threads_; }
static inline u32 bid() { return block_[0]; }
static inline u32 bidy() { return block_[1]; }
static inline u32 nbid() { return blocks_; }
static inline void bar() {
  u32 turn = barrier_turn;
  if (++at_barrier == (int)threads_) { at_barrier = 0, barrier_turn++; return; }
  while (barrier_turn == turn) pass();
}
static inline void atom_add(u64 *p, u64 v) { *p += v; }
static inline void atom_min(u64 *p, u64 v) { if (v < *p) *p = v; }
static inline void atom_or(u64 *p, u64 v) { *p |= v; }
static inline u32 smem(const void *p) { shared_ = (char *)p; return 0; }
static inline void cp16(u32 to, const void *from) { copies[thread_].back().push_back({shared_ + to, (const char *)from}); }
static inline void cp_commit() { copies[thread_].push_back({}); }
static inline void cp_wait1() {
  auto &g = copies[thread_];
  for (size_t i = 0; i + 2 < g.size(); i++) {
    for (auto &c : g[i]) memcpy(c.to, c.from, 16);
    g[i].clear();
  }
}
template <class F> static inline void together(void *arg, F f) {
  Warp &w = warps[thread_ / 32];
  w.arg[thread_ % 32] = arg;
  u32 turn = w.turn;
  if (++w.arrived == 32) { f(w); w.arrived = 0, w.turn++; return; }
  while (w.turn == turn) pass();
}
struct Matrix { u32 *r, at; };
static inline void ldm4(u32 *r, u32 at) {
  Matrix m{r, at};
  together(&m, [](Warp &w) {
    for (int l = 0; l < 32; l++) for (int i = 0; i < 4; i++)
      memcpy(&((Matrix *)w.arg[l])->r[i], shared_ + ((Matrix *)w.arg[i * 8 + l / 4])->at + l % 4 * 4, 4);
  });
}

// how a number lies in bits
struct BF16 { static const int width = 2; static double get(u32 v, int i) { u32 x = (v >> 16 * i) << 16; return __builtin_bit_cast(float, x); } };
struct F16 {
  static const int width = 2;
  static double get(u32 v, int i) {
    u32 b = v >> 16 * i & 0xffff, e = b >> 10 & 31;
    double x = e ? std::ldexp(1 + (b & 1023) / 1024.0, (int)e - 15) : std::ldexp(b & 1023, -24);
    return b & 0x8000 ? -x : x;
  }
  static unsigned short put(double x) { // no infinities: nothing here comes near
    int e;
    double m = std::frexp(std::fabs(x), &e); // 0.5 to 1
    if (e < -13) return (x < 0 ? 0x8000 : 0) | (unsigned short)std::nearbyint(std::ldexp(std::fabs(x), 24));
    return (x < 0 ? 0x8000 : 0) | (unsigned short)(((e + 14) << 10) - 1024 + (int)std::nearbyint(m * 2048));
  }
};
struct TF32 { static const int width = 1; static double get(u32 v, int) { return __builtin_bit_cast(float, v & 0xffffe000u); } };
struct S8 { static const int width = 4; static double get(u32 v, int i) { return (signed char)(v >> 8 * i); } };
struct E4M3 {
  static const int width = 4;
  static double get(u32 v, int i) {
    u32 b = v >> 8 * i & 0xff, e = b >> 3 & 15, m = b & 7;
    double x = e ? (1 + m / 8.0) * (e >= 7 ? 1u << (e - 7) : 1.0 / (1u << (7 - e))) : m / 512.0;
    return b & 0x80 ? -x : x;
  }
};
struct Mma { void *d; const u32 *a, *b; };
// the m16n8 instructions (PTX ISA, matrix fragments): NA registers of A and NA/2 of B a thread; put adds to result i of a thread
template <class T, int NA, class PUT> static inline void mma(void *d, const u32 *a, const u32 *b, PUT) {
  Mma m{d, a, b};
  together(&m, [](Warp &w) {
    const int W = T::width, K = W * 4 * (NA / 2);
    static double A[16][32], B[32][8];
    for (int l = 0; l < 32; l++) {
      Mma *q = (Mma *)w.arg[l];
      int g = l / 4, t = l % 4;
      for (int i = 0; i < NA; i++) for (int h = 0; h < W; h++) A[g + (i & 1) * 8][t * W + h + (i >> 1) * 4 * W] = T::get(q->a[i], h);
      for (int i = 0; i < NA / 2; i++) for (int h = 0; h < W; h++) B[t * W + h + i * 4 * W][g] = T::get(q->b[i], h);
    }
    for (int l = 0; l < 32; l++) for (int i = 0; i < 4; i++) {
      double s = 0;
      for (int k = 0; k < K; k++) s += A[l / 4 + (i >> 1) * 8][k] * B[k][l % 4 * 2 + (i & 1)];
      PUT::add(((Mma *)w.arg[l])->d, i, s);
    }
  });
}
struct ToFloat { static void add(void *d, int i, double s) { ((float *)d)[i] = (float)(((float *)d)[i] + s); } };
struct ToInt { static void add(void *d, int i, double s) { ((u32 *)d)[i] += (u32)(long long)s; } };
struct ToHalf { static void add(void *d, int i, double s) { unsigned short &h = ((unsigned short *)d)[i]; h = F16::put(F16::get(h, 0) + s); } };
#define MMA_BF16(d, a, b) mma<BF16, 4>(d, a, b, ToFloat())
#define MMA_F16(d, a, b) mma<F16, 4>(d, a, b, ToFloat())
#define MMA_F16ACC(d, a, b) mma<F16, 4>(d, a, b, ToHalf())
#define MMA_F16K8(d, a, b) mma<F16, 2>(d, a, b, ToFloat())
#define MMA_TF32(d, a, b) mma<TF32, 4>(d, a, b, ToFloat())
#define MMA_S8(d, a, b) mma<S8, 4>(d, a, b, ToInt())
#define MMA_E4M3(d, a, b) mma<E4M3, 4>(d, a, b, ToFloat())
struct Mma64 { double *d, a, b; };
static inline void mma_f64(double *d, double a, double b) {
  Mma64 m{d, a, b};
  together(&m, [](Warp &w) {
    for (int l = 0; l < 32; l++) for (int i = 0; i < 2; i++)
      for (int k = 0; k < 4; k++) ((Mma64 *)w.arg[l])->d[i] += ((Mma64 *)w.arg[l / 4 * 4 + k])->a * ((Mma64 *)w.arg[(l % 4 * 2 + i) * 4 + k])->b;
  });
}
#define MMA_F64(d, a, b) mma_f64(d, a, b)

static const size_t stack_size = 65536;
static __attribute__((noinline)) void resume(Fiber &f) {
  if (_setjmp(scheduler)) return;
  if (f.begun) _longjmp(f.at, 1);
  f.begun = true;
  setcontext(&f.first);
}
// alone: the kernel has no barrier and no instruction of a whole warp, so that its threads need no fibers
static void launch(u32 gx, u32 gy, u32 threads, std::function<void()> f, bool alone = false) {
  kernel = f, threads_ = threads, blocks_ = gx;
  for (block_[1] = 0; block_[1] < gy; block_[1]++) for (block_[0] = 0; block_[0] < gx; block_[0]++) {
    if (alone) {
      for (thread_ = 0; thread_ < threads; thread_++) kernel();
      continue;
    }
    while (fibers.size() < threads) fibers.push_back({{}, {}, (char *)malloc(stack_size), false, true}); // kept for the next block
    warps = std::vector<Warp>((threads + 31) / 32), at_barrier = 0;
    copies.assign(threads, {{}});
    for (u32 i = 0; i < threads; i++) {
      Fiber &f = fibers[i];
      getcontext(&f.first);
      f.begun = f.done = false, f.first.uc_stack.ss_sp = f.stack, f.first.uc_stack.ss_size = stack_size, f.first.uc_link = 0;
      makecontext(&f.first, enter, 0);
    }
    for (bool left = true; left;) {
      left = false;
      for (thread_ = 0; thread_ < threads; thread_++)
        if (!fibers[thread_].done) resume(fibers[thread_]), left = true;
    }
  }
}
