// Runs the kernels of bench.cu on the CPU and compares each result with plain arithmetic in double. Prints a line for each; the exit
// status is the number of kernels that are wrong.
//   c++ -DHOST_EMU -O1 -std=c++20 -o emutest emutest.cpp && ./emutest
#include "bench.cu"

static int wrong;
static void report(const char *name, double worst, double limit) {
  bool ok = worst <= limit; // a NaN is wrong
  printf("%s %s: worst error %.2e, limit %.2e\n", ok ? "ok" : "WRONG", name, worst, limit);
  wrong += !ok;
}
static double away(double a, double b) { return std::isnan(a) ? INFINITY : std::fabs(a - b); }
static float bf(unsigned short h) { return __builtin_bit_cast(float, (u32)h << 16); }

static void memory() {
  const u64 n = 1000; // no multiple of the grid
  std::vector<u4> a(n), b(n);
  launch(3, 1, 64, [&] { mem_fill((u64 *)a.data(), 2 * n, 42, 0); });
  std::vector<u32> out(192);
  launch(3, 1, 64, [&] { mem_read(a.data(), n, out.data()); });
  u64 want = 0;
  u32 got = 0;
  for (u64 i = 0; i < 2 * n; i++) want ^= word(42, i);
  for (u32 v : out) got ^= v;
  report("mem_read", got != (u32)(want ^ want >> 32), 0);
  launch(3, 1, 64, [&] { mem_copy(a.data(), b.data(), n); });
  report("mem_copy", memcmp(a.data(), b.data(), n * 16), 0);
  launch(3, 1, 64, [&] { mem_write(a.data(), n, 7); });
  int bad = 0;
  for (u64 i = 0; i < 4 * n; i++) bad += ((u32 *)a.data())[i] != 7 + i;
  report("mem_write", bad, 0);
  std::vector<f4> x(n), y(n), z(n);
  launch(3, 1, 64, [&] { fill_f32((float *)x.data(), 4 * n, 1); });
  launch(3, 1, 64, [&] { fill_f32((float *)y.data(), 4 * n, 2); });
  launch(3, 1, 64, [&] { mem_triad(x.data(), y.data(), z.data(), 3, n); });
  double worst = 0;
  for (u64 i = 0; i < 4 * n; i++) worst = std::fmax(worst, away(((float *)z.data())[i], unit(1, i) + 3.0 * unit(2, i)));
  report("mem_triad", worst, 1e-6);
  for (u64 flip : {0ull, ~0ull}) {
    u64 err[3] = {0, ~0ull, 0};
    launch(3, 1, 64, [&] { mem_fill((u64 *)b.data(), 2 * n, 9, flip); });
    launch(4, 1, 32, [&] { mem_verify((u64 *)b.data(), 2 * n, 9, flip, err); });
    bool clean = err[0] == 0;
    ((u64 *)b.data())[777] ^= 1ull << 40, ((u64 *)b.data())[778] ^= 8;
    launch(4, 1, 32, [&] { mem_verify((u64 *)b.data(), 2 * n, 9, flip, err); });
    report(flip ? "mem_verify of the complement" : "mem_verify", !(clean && err[0] == 2 && err[1] == 777 && err[2] == (1ull << 40 | 8)), 0);
  }
}

static void products() {
  const u32 n = 256;
  std::vector<float> a(n * n), b(n * n), c(n * n, NAN);
  launch(2, 1, 64, [&] { fill_f32(a.data(), n * n, 1); });
  launch(2, 1, 64, [&] { fill_f32(b.data(), n * n, 2); });
  launch(n / 128, n / 128, 256, [&] { sgemm(a.data(), b.data(), c.data(), n); });
  double worst = 0;
  for (u32 i = 0; i < n; i++) for (u32 j = 0; j < n; j++) {
    double s = 0;
    for (u32 k = 0; k < n; k++) s += (double)a[i * n + k] * b[k * n + j];
    worst = std::fmax(worst, away(c[i * n + j], s));
  }
  report("sgemm", worst, 1e-5);
  std::vector<unsigned short> x(n * n), y(n * n);
  launch(2, 1, 64, [&] { fill_bf16(x.data(), n * n, 1); });
  launch(2, 1, 64, [&] { fill_bf16(y.data(), n * n, 2); });
  worst = 0;
  for (u32 i = 0; i < n * n; i++) worst = std::fmax(worst, away(bf(x[i]), a[i]));
  report("fill_bf16", worst, 0x1p-10); // half a step of numbers below 0.5
  std::fill(c.begin(), c.end(), NAN);
  launch(n / 128, n / 128, 256, [&] { bf16_gemm(x.data(), y.data(), c.data(), n); });
  worst = 0;
  for (u32 i = 0; i < n; i++) for (u32 j = 0; j < n; j++) {
    double s = 0;
    for (u32 k = 0; k < n; k++) s += (double)bf(x[i * n + k]) * bf(y[j * n + k]);
    worst = std::fmax(worst, away(c[i * n + j], s));
  }
  report("bf16_gemm", worst, 1e-5);
}

template <class T, class F> static void chains(const char *name, F f) {
  std::vector<T> out(64, NAN);
  launch(1, 1, 64, [&] { f(out.data()); });
  double worst = 0;
  for (T v : out) worst = std::fmax(worst, away(v, 0.75 / (1 + 0.96875)));
  report(name, worst, 1e-5);
}

// each of a thread's 8 products must end where it began
template <class T, class F> static void tensors(const char *name, int per, double limit, F f) {
  std::vector<T> out(2 * 64 * 8 * per);
  launch(2, 1, 64, [&] { f(out.data()); });
  double worst = 0;
  for (size_t i = 0; i < out.size(); i++) worst = std::fmax(worst, away((double)out[i], 1 + (int)(i / per % 8)));
  report(name, worst, limit);
}

struct Half {
  unsigned short bits;
  operator double() const { return F16::get(bits, 0); }
};

static void s8() {
  std::vector<u32> out(64 * 8 * 4);
  launch(1, 1, 64, [&] { s8_rate(out.data(), 6); });
  int bad = 0;
  for (u32 t = 0; t < 64; t++) for (u32 i = 0; i < 8; i++) for (u32 j = 0; j < 4; j++) {
    int sum = 0; // of column (t % 4) * 2 + j % 2 of B, which 4 threads hold
    for (u32 lane = 0; lane < 4; lane++) for (u32 r = 0; r < 2; r++) for (int h = 0; h < 4; h++)
      sum += S8::get((u32)word(4 + r, (t & ~31u) + (t % 4 * 2 + j % 2) * 4 + lane), h);
    bad += out[(t * 8 + i) * 4 + j] != i + 1 - 3 * (u32)sum;
  }
  report("s8_rate", bad, 0);
}

int main() {
  memory();
  products();
  chains<float>("fp32_rate", [](float *o) { fp32_rate(o, 1000, -0.96875f, 0.75f); });
  chains<double>("fp64_rate", [](double *o) { fp64_rate(o, 1000, -0.96875, 0.75); });
  tensors<float>("f16_k8_rate", 4, 1e-4, [](float *o) { f16_k8_rate(o, 6); });
  tensors<float>("bf16_rate", 4, 1e-4, [](float *o) { bf16_rate(o, 6); });
  tensors<float>("f16_rate", 4, 1e-4, [](float *o) { f16_rate(o, 6); });
  tensors<Half>("f16acc_rate", 4, 0.05, [](Half *o) { f16acc_rate((u32 *)o, 6); });
  tensors<float>("tf32_rate", 4, 1e-4, [](float *o) { tf32_rate(o, 6); });
  tensors<float>("e4m3_rate", 4, 1e-4, [](float *o) { e4m3_rate(o, 6); });
  tensors<double>("f64_rate", 2, 1e-9, [](double *o) { f64_rate(o, 6); });
  s8();
  return wrong;
}
