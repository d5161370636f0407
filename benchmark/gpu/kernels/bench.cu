// The code that runs on NVIDIA cards. A plain clang builds it to PTX, without NVIDIA's toolkit: what its headers would declare is
// declared here (build.sh has the command and the targets). With HOST_EMU the same text is compiled for the CPU (hostemu.h), where
// emutest.cpp checks its arithmetic. BASE, MAIN and FP8 choose which kernels a PTX file has; each file is for the oldest cards and
// drivers that can run it.
#ifndef HOST_EMU
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define KERNEL extern "C" __global__ void
#define BOUNDS(threads, blocks) __attribute__((launch_bounds(threads, blocks)))
#define DEV static __device__ __inline__ __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
#endif

typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f2 __attribute__((vector_size(8)));
typedef float f4 __attribute__((vector_size(16)));
typedef u32 u4 __attribute__((vector_size(16)));

#ifdef HOST_EMU
#include "hostemu.h"
#else
DEV u32 tid() { return __nvvm_read_ptx_sreg_tid_x(); }
DEV u32 ntid() { return __nvvm_read_ptx_sreg_ntid_x(); }
DEV u32 bid() { return __nvvm_read_ptx_sreg_ctaid_x(); }
DEV u32 bidy() { return __nvvm_read_ptx_sreg_ctaid_y(); }
DEV u32 nbid() { return __nvvm_read_ptx_sreg_nctaid_x(); }
DEV void bar() { __nvvm_bar_sync(0); }
DEV void atom_add(u64 *p, u64 v) { asm volatile("atom.global.add.u64 _, [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
DEV void atom_min(u64 *p, u64 v) { asm volatile("atom.global.min.u64 _, [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
DEV void atom_or(u64 *p, u64 v) { asm volatile("atom.global.or.b64 _, [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
#define MMA4(SHAPE, OUT, IN, d, a, b) \
  asm volatile("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : OUT((d)[0]), OUT((d)[1]), OUT((d)[2]), OUT((d)[3]) \
               : IN((a)[0]), IN((a)[1]), IN((a)[2]), IN((a)[3]), IN((b)[0]), IN((b)[1]))
#define MMA_BF16(d, a, b) MMA4("m16n8k16.row.col.f32.bf16.bf16.f32", "+f", "r", d, a, b)
#define MMA_F16(d, a, b) MMA4("m16n8k16.row.col.f32.f16.f16.f32", "+f", "r", d, a, b)
#define MMA_TF32(d, a, b) MMA4("m16n8k8.row.col.f32.tf32.tf32.f32", "+f", "r", d, a, b)
#define MMA_S8(d, a, b) MMA4("m16n8k32.row.col.s32.s8.s8.s32", "+r", "r", d, a, b)
#define MMA_E4M3(d, a, b) MMA4("m16n8k32.row.col.f32.e4m3.e4m3.f32", "+f", "r", d, a, b)
#define MMA_F16ACC(d, a, b) \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};" \
               : "+r"((d)[0]), "+r"((d)[1]) : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
#define MMA_F16K8(d, a, b) \
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" \
               : "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]) : "r"((a)[0]), "r"((a)[1]), "r"((b)[0]))
#define MMA_F64(d, a, b) \
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+d"((d)[0]), "+d"((d)[1]) : "d"(a), "d"(b))
#endif

// mix is a finaliser of 64 bits (Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014). The host has the same.
DEV u64 mix(u64 z) {
  z ^= z >> 30, z *= 0xbf58476d1ce4e5b9ull;
  z ^= z >> 27, z *= 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
// word i of the pattern of seed
DEV u64 word(u64 seed, u64 i) { return mix(seed + i * 0x9e3779b97f4a7c15ull); }
// the same as a number between -0.5 and 0.5, exact in a float
DEV float unit(u64 seed, u64 i) { return (float)(int)((u32)(word(seed, i) >> 40) - 0x800000u) * 0x1p-24f; }

#if defined BASE || defined HOST_EMU
// ---- memory: the thread's first index, and the step to its next
#define EACH(i, n) for (u64 i = (u64)bid() * ntid() + tid(), step = (u64)nbid() * ntid(); i < (n); i += step)

KERNEL mem_read(const u4 *a, u64 n, u32 *out) {
  u4 x = {0, 0, 0, 0};
  EACH(i, n) x ^= a[i];
  out[(u64)bid() * ntid() + tid()] = x[0] ^ x[1] ^ x[2] ^ x[3];
}
KERNEL mem_write(u4 *a, u64 n, u32 v) {
  EACH(i, n) {
    u32 x = v + 4 * (u32)i;
    u4 w = {x, x + 1, x + 2, x + 3};
    a[i] = w;
  }
}
KERNEL mem_copy(const u4 *a, u4 *b, u64 n) { EACH(i, n) b[i] = a[i]; }
KERNEL mem_triad(const f4 *a, const f4 *b, f4 *c, float s, u64 n) {
  f4 all = {s, s, s, s};
  EACH(i, n) c[i] = a[i] + all * b[i];
}

// ---- test of memory: every word is known from its own index; flip is 0 or all ones, so that each bit is held both ways
KERNEL mem_fill(u64 *a, u64 n, u64 seed, u64 flip) { EACH(i, n) a[i] = word(seed, i) ^ flip; }
// err: how many words are wrong, the first of them, and which bits
KERNEL mem_verify(const u64 *a, u64 n, u64 seed, u64 flip, u64 *err) {
  EACH(i, n) {
    u64 d = a[i] ^ word(seed, i) ^ flip;
    if (d) atom_add(err, 1), atom_min(err + 1, i), atom_or(err + 2, d);
  }
}

// ---- random matrices
KERNEL fill_f32(float *a, u64 n, u64 seed) { EACH(i, n) a[i] = unit(seed, i); }
KERNEL fill_bf16(unsigned short *a, u64 n, u64 seed) {
  EACH(i, n) {
    u32 x = __builtin_bit_cast(u32, unit(seed, i));
    a[i] = (unsigned short)((x + 0x7fff + ((x >> 16) & 1)) >> 16); // round to nearest, ties to even
  }
}

// ---- C = A B in FP32 on the ordinary cores; n is a multiple of 128. Tiles of 128 x 128 x 8, 256 threads, 8 x 8 results each.
KERNEL BOUNDS(256, 2) sgemm(const float *A, const float *B, float *C, u32 n) {
  static __shared__ __attribute__((aligned(16))) float sa[8][132];
  static __shared__ __attribute__((aligned(16))) float sb[8][132];
  u32 t = tid(), tx = t & 15, ty = t >> 4;
  const float *Ap = A + (u64)(bidy() * 128 + (t >> 1)) * n + (t & 1) * 4;
  const float *Bp = B + (u64)(t >> 5) * n + bid() * 128 + (t & 31) * 4;
  float acc[8][8];
  UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 8; j++) acc[i][j] = 0.f;
  f4 ra = *(const f4 *)Ap, rb = *(const f4 *)Bp;
  for (u32 k = 0; k < n; k += 8) {
    UNROLL for (int i = 0; i < 4; i++) sa[(t & 1) * 4 + i][t >> 1] = ra[i];
    *(f4 *)&sb[t >> 5][(t & 31) * 4] = rb;
    bar();
    if (k + 8 < n) { // the next tile is on its way while this one is multiplied
      Ap += 8, Bp += (u64)8 * n;
      ra = *(const f4 *)Ap, rb = *(const f4 *)Bp;
    }
    UNROLL for (int kk = 0; kk < 8; kk++) {
      f4 a0 = *(f4 *)&sa[kk][ty * 4], a1 = *(f4 *)&sa[kk][64 + ty * 4];
      f4 b0 = *(f4 *)&sb[kk][tx * 4], b1 = *(f4 *)&sb[kk][64 + tx * 4];
      UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 8; j++)
        acc[i][j] = __builtin_fmaf(i < 4 ? a0[i & 3] : a1[i & 3], j < 4 ? b0[j & 3] : b1[j & 3], acc[i][j]);
    }
    bar();
  }
  UNROLL for (int i = 0; i < 8; i++) {
    float *c = C + (u64)(bidy() * 128 + (i < 4 ? ty * 4 + i : 64 + ty * 4 + i - 4)) * n + bid() * 128;
    f4 v0 = {acc[i][0], acc[i][1], acc[i][2], acc[i][3]}, v1 = {acc[i][4], acc[i][5], acc[i][6], acc[i][7]};
    *(f4 *)(c + tx * 4) = v0;
    *(f4 *)(c + 64 + tx * 4) = v1;
  }
}

// ---- rates of the ordinary cores: 16 (8) chains x = a x + b in registers. With |a| < 1 each ends at b / (1 - a), which the host checks.
#define RATE(NAME, T, CHAINS, FMA) \
  KERNEL NAME(T *out, u32 iters, T a, T b) { \
    T r[CHAINS]; \
    UNROLL for (int i = 0; i < CHAINS; i++) r[i] = (T)unit(i, tid()); \
    for (u32 k = 0; k < iters; k++) UNROLL for (int i = 0; i < CHAINS; i++) r[i] = FMA(r[i], a, b); \
    T s = 0; \
    UNROLL for (int i = 0; i < CHAINS; i++) s += r[i]; \
    out[(u64)bid() * ntid() + tid()] = s / CHAINS; \
  }
RATE(fp32_rate, float, 16, __builtin_fmaf)
RATE(fp64_rate, double, 8, __builtin_fma)
#endif

// ---- rates of the tensor cores: 8 products in registers, added and taken away again in turn, so that sums stay small and each ends
// where it began: at 1 + its number. Operands are random: KEEP are the bits left to chance, SET those that keep a number near 1, SIGN
// changes its sign.
#define TENSOR(NAME, ACC, START, NACC, NA, NB, KEEP, SET, SIGN, MMA) \
  KERNEL NAME(ACC *out, u32 iters) { \
    u32 a[NA], minus[NA], b[NB]; \
    UNROLL for (int i = 0; i < NA; i++) a[i] = ((u32)word(i, tid()) & (KEEP)) | (SET), minus[i] = a[i] ^ (SIGN); \
    UNROLL for (int i = 0; i < NB; i++) b[i] = ((u32)word(NA + i, tid()) & (KEEP)) | (SET); \
    ACC d[8][NACC]; \
    UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < NACC; j++) d[i][j] = START(i + 1); \
    for (u32 k = 0; k < iters; k += 2) { \
      UNROLL for (int i = 0; i < 8; i++) MMA(d[i], a, b); \
      UNROLL for (int i = 0; i < 8; i++) MMA(d[i], minus, b); \
    } \
    u64 at = ((u64)bid() * ntid() + tid()) * 8 * NACC; \
    UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < NACC; j++) out[at + i * NACC + j] = d[i][j]; \
  }
#define AS_IS(v) (v)
#define AS_HALVES(v) (0x10001u * ((v) == 1 ? 0x3c00u : (v) < 4 ? 0x4000u + ((v) - 2) * 0x200u : 0x4400u + ((v) - 4) * 0x100u)) // 1 to 8, twice
#define HALF2 (0x3800u * 0x10001u) // 0.5
#if defined BASE || defined HOST_EMU
TENSOR(f16_k8_rate, float, AS_IS, 4, 2, 1, 0x83ff83ffu, HALF2, 0x80008000u, MMA_F16K8)
#endif
#if defined MAIN || defined HOST_EMU
TENSOR(bf16_rate, float, AS_IS, 4, 4, 2, 0x807f807fu, 0x3f003f00u, 0x80008000u, MMA_BF16)
TENSOR(f16_rate, float, AS_IS, 4, 4, 2, 0x83ff83ffu, HALF2, 0x80008000u, MMA_F16)
TENSOR(f16acc_rate, u32, AS_HALVES, 2, 4, 2, 0x83ff83ffu, HALF2, 0x80008000u, MMA_F16ACC)
TENSOR(tf32_rate, float, AS_IS, 4, 4, 2, 0x807fe000u, 0x3f000000u, 0x80000000u, MMA_TF32)
// a byte can't change its sign by one bit: its complement is -x - 1, so that each round of two adds -1 times the sum of b
TENSOR(s8_rate, u32, AS_IS, 4, 4, 2, 0xffffffffu, 0u, 0xffffffffu, MMA_S8)
KERNEL f64_rate(double *out, u32 iters) {
  double a = unit(1, tid()) + 1, b = unit(2, tid()), minus = -a, d[8][2];
  UNROLL for (int i = 0; i < 8; i++) d[i][0] = d[i][1] = i + 1;
  for (u32 k = 0; k < iters; k += 2) {
    UNROLL for (int i = 0; i < 8; i++) MMA_F64(d[i], a, b);
    UNROLL for (int i = 0; i < 8; i++) MMA_F64(d[i], minus, b);
  }
  u64 at = ((u64)bid() * ntid() + tid()) * 16;
  UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 2; j++) out[at + i * 2 + j] = d[i][j];
}

#ifndef HOST_EMU
DEV u32 smem(const void *p) {
  u64 r;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(r) : "l"((u64)p));
  return (u32)r;
}
DEV void cp16(u32 to, const void *from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
DEV void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEV void cp_wait1() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
DEV void ldm4(u32 *r, u32 p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
}
#endif

// ---- C = A B^T in BF16 with FP32 sums; B is given as rows of k, n is a multiple of 128. Tiles of 128 x 128 x 32 in three stages, of
// which two are on their way; 8 warps as 2 x 4, each 64 x 32 of the result.
#define STAGES 3
#define TILE (128 * 64) // bytes: 128 rows of 32 numbers
// where chunk c (of 16 bytes) of row r lies: turned so that the 8 rows of an ldmatrix lie in different banks
DEV u32 chunk(u32 r, u32 c) { return r * 64 + ((c ^ ((r >> 1) & 3)) << 4); }

KERNEL BOUNDS(256, 2) bf16_gemm(const unsigned short *A, const unsigned short *B, float *C, u32 n) {
  static __shared__ __attribute__((aligned(128))) char sm[STAGES * 2 * TILE];
  u32 base = smem(sm), t = tid(), w = t >> 5, l = t & 31, wm = (w & 1) * 64, wn = (w >> 1) * 32;
  const unsigned short *Ag = A + (u64)bidy() * 128 * n, *Bg = B + (u64)bid() * 128 * n;
  float d[4][4][4];
  UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 4; j++) UNROLL for (int q = 0; q < 4; q++) d[i][j][q] = 0.f;
#define LOAD(stage, k0) do { \
    u32 sa = base + (stage) * 2 * TILE, sb = sa + TILE; \
    UNROLL for (int q = 0; q < 2; q++) { \
      u32 id = t + q * 256, r = id >> 2, c = id & 3; \
      cp16(sa + chunk(r, c), Ag + (u64)r * n + (k0) + c * 8); \
      cp16(sb + chunk(r, c), Bg + (u64)r * n + (k0) + c * 8); \
    } \
  } while (0)
  u32 tiles = n / 32;
  UNROLL for (int s = 0; s < STAGES - 1; s++) { LOAD(s, s * 32); cp_commit(); }
  u32 rd = 0, wr = STAGES - 1;
  for (u32 k = 0; k < tiles; k++) {
    cp_wait1();
    bar();
    if (k + STAGES - 1 < tiles) LOAD(wr, (k + STAGES - 1) * 32);
    cp_commit();
    u32 sa = base + rd * 2 * TILE, sb = sa + TILE;
    UNROLL for (int kk = 0; kk < 2; kk++) {
      u32 a[4][4], b[2][4];
      UNROLL for (int i = 0; i < 4; i++) ldm4(a[i], sa + chunk(wm + i * 16 + (l & 15), kk * 2 + (l >> 4)));
      UNROLL for (int j = 0; j < 2; j++) ldm4(b[j], sb + chunk(wn + j * 16 + (l & 7) + ((l >> 4) << 3), kk * 2 + ((l >> 3) & 1)));
      UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 4; j++) MMA_BF16(d[i][j], a[i], (b[j >> 1] + (j & 1) * 2));
    }
    rd = rd + 1 == STAGES ? 0 : rd + 1;
    wr = wr + 1 == STAGES ? 0 : wr + 1;
  }
  UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 4; j++) {
    u64 r = (u64)bidy() * 128 + wm + i * 16 + (l >> 2), c = (u64)bid() * 128 + wn + j * 8 + (l & 3) * 2;
    f2 v0 = {d[i][j][0], d[i][j][1]}, v1 = {d[i][j][2], d[i][j][3]};
    *(f2 *)(C + r * n + c) = v0;
    *(f2 *)(C + (r + 8) * n + c) = v1;
  }
}
#endif

#if defined FP8 || defined HOST_EMU
TENSOR(e4m3_rate, float, AS_IS, 4, 4, 2, 0x87878787u, 0x30303030u, 0x80808080u, MMA_E4M3)
#endif
