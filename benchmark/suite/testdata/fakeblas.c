// A libopenblas.so.0 for tests. It multiplies plainly, for n = whatever, and is as wrong as the compiler's flags say:
// -DSKIP leaves out the last term, -DNAN gives no numbers, -DBARE lacks dgemm.
static int threads;
void openblas_set_num_threads(int n) { threads = n; }
const char *openblas_get_config(void) { return "OpenBLAS 9.9.9 FAKE MAX_THREADS=1"; }
const char *openblas_get_corename(void) { return "Nothing"; }
#ifdef SKIP
enum { skip = 1 };
#else
enum { skip = 0 };
#endif
#define GEMM(name, T) \
  void name(int order, int ta, int tb, int m, int n, int k, T alpha, const T *a, int lda, const T *b, int ldb, T beta, T *c, int ldc) { \
    if (order != 101 || ta != 111 || tb != 111 || threads != 1) return; \
    for (int i = 0; i < m; i++) \
      for (int j = 0; j < n; j++) { \
        T sum = 0; \
        for (int l = 0; l < k - skip; l++) sum += a[i * lda + l] * b[l * ldb + j]; \
        c[i * ldc + j] = BAD(alpha * sum + (beta == 0 ? 0 : beta * c[i * ldc + j])); \
      } \
  }
#ifdef NAN
#define BAD(x) ((x) * 0 / 0)
#else
#define BAD(x) (x)
#endif
GEMM(cblas_sgemm, float)
#ifndef BARE
GEMM(cblas_dgemm, double)
#endif
