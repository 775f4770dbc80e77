// cuBLASLt for machines without a GPU, named libcublasLt.so, beside tests/gpu/driver.c, whose device keeps its memory on the host. It holds
// each product against what cuBLASLt demands of layouts, and computes the small ones, so that tests of products pass or fail as on a GPU.
// With `REHEARSAL_PRODUCTS=counted` it computes none: what is left is the time that the program itself takes to ask for them. With
// `REHEARSAL_PRODUCTS=refused` it has a kernel for none of them.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 7, UNSUPPORTED = 15 };
enum { R_32F = 0, R_16BF = 14 };
enum { TRANSPOSED = 1, DESC_TRANSA = 3, DESC_TRANSB = 4, LAYOUT_BATCH_COUNT = 5, LAYOUT_BATCH_STRIDE = 6 };
// Multiplications, above which a product is only counted.
static const double COMPUTED = 1 << 26;

typedef struct { int turned_a, turned_b; } Desc;
typedef struct { int type; uint64_t rows, columns; int64_t step; int32_t count; int64_t stride; } Layout;
typedef struct { uint64_t data[8]; } Algo;
typedef struct { Algo algo; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;

static long products;
static int counted, refused;

static int refuse(const char *what, long a, long b) {
  fprintf(stderr, "rehearsal: cuBLASLt refuses: %s %ld %ld\n", what, a, b);
  return INVALID;
}

static void report(void) { fprintf(stderr, "rehearsal: %ld products by cuBLASLt\n", products); }

int cublasLtCreate(void **made) {
  const char *wanted = getenv("REHEARSAL_PRODUCTS");
  counted = wanted && !strcmp(wanted, "counted");
  refused = wanted && !strcmp(wanted, "refused");
  atexit(report);
  return *made = malloc(1), SUCCESS;
}
int cublasLtDestroy(void *of) { free(of); return SUCCESS; }
size_t cublasLtGetVersion(void) { return 130000; }

int cublasLtMatmulDescCreate(Desc **made, int compute, int scale) { return *made = calloc(1, sizeof(Desc)), scale == R_32F ? SUCCESS : INVALID; }
int cublasLtMatmulDescDestroy(Desc *of) { free(of); return SUCCESS; }
int cublasLtMatmulDescSetAttribute(Desc *of, int which, const void *value, size_t bytes) {
  if (bytes != 4 || (which != DESC_TRANSA && which != DESC_TRANSB)) return refuse("attribute of a product", which, bytes);
  *(which == DESC_TRANSA ? &of->turned_a : &of->turned_b) = *(const int *)value == TRANSPOSED;
  return SUCCESS;
}

int cublasLtMatrixLayoutCreate(Layout **made, int type, uint64_t rows, uint64_t columns, int64_t step) {
  if (step < (int64_t)rows) return refuse("leading dimension", step, rows);
  *made = malloc(sizeof(Layout));
  **made = (Layout){type, rows, columns, step, 1, 0};
  return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(Layout *of) { free(of); return SUCCESS; }
int cublasLtMatrixLayoutSetAttribute(Layout *of, int which, const void *value, size_t bytes) {
  if (which == LAYOUT_BATCH_COUNT && bytes == 4) of->count = *(const int32_t *)value;
  else if (which == LAYOUT_BATCH_STRIDE && bytes == 8) of->stride = *(const int64_t *)value;
  else return refuse("attribute of a matrix", which, bytes);
  return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(void **made) { return *made = malloc(1), SUCCESS; }
int cublasLtMatmulPreferenceDestroy(void *of) { free(of); return SUCCESS; }
int cublasLtMatmulPreferenceSetAttribute(void *of, int which, const void *value, size_t bytes) { return SUCCESS; }

int cublasLtMatmulAlgoGetHeuristic(void *library, Desc *desc, Layout *a, Layout *b, Layout *c, Layout *d, void *wishes, int wanted, Heuristic *found, int *count) {
  memset(found, 0, sizeof *found);
  *count = !refused;
  return SUCCESS;
}

static float element(const char *at, int type, int64_t index) {
  if (type == R_32F) return ((const float *)at)[index];
  uint32_t bits = (uint32_t)((const uint16_t *)at)[index] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static void store(char *at, int type, int64_t index, float value) {
  if (type == R_32F) { ((float *)at)[index] = value; return; }
  uint32_t bits;
  memcpy(&bits, &value, 4);
  ((uint16_t *)at)[index] = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// Columns first, as cuBLASLt counts.
static int64_t place(const Layout *of, int turned, int64_t row, int64_t column) { return turned ? column + row * of->step : row + column * of->step; }

int cublasLtMatmul(void *library, Desc *desc, const float *alpha, const char *a, Layout *of_a, const char *b, Layout *of_b, const float *beta, const char *c, Layout *of_c,
                   char *d, Layout *of_d, const Algo *algo, void *workspace, size_t workspace_bytes, void *stream) {
  products++;
  uint64_t rows = desc->turned_a ? of_a->columns : of_a->rows, inner = desc->turned_a ? of_a->rows : of_a->columns;
  uint64_t columns = desc->turned_b ? of_b->rows : of_b->columns, inner_b = desc->turned_b ? of_b->columns : of_b->rows;
  if (inner != inner_b) return refuse("inner sides", inner, inner_b);
  if (rows != of_d->rows || columns != of_d->columns) return refuse("output of", of_d->rows, of_d->columns);
  if (of_a->count != of_d->count || of_b->count != of_d->count) return refuse("numbers of matrices", of_a->count, of_b->count);
  if (*alpha != 1 || (*beta != 0 && (*beta != 1 || c != d)) || !workspace || !stream) return refuse("scales, workspace or stream", 0, 0);
  if (of_d->type != R_32F && of_d->type != R_16BF) return UNSUPPORTED;
  if (of_a->type != of_b->type || (of_d->type != of_a->type && of_d->type != R_32F)) return refuse("types of factors and output", of_a->type, of_d->type);
  if (counted || (double)rows * columns * inner * of_d->count > COMPUTED) return SUCCESS;
  for (int64_t nth = 0; nth < of_d->count; nth++)
    for (uint64_t column = 0; column < columns; column++)
      for (uint64_t row = 0; row < rows; row++) {
        float sum = *beta ? element(d, of_d->type, nth * of_d->stride + place(of_d, 0, row, column)) : 0;
        for (uint64_t at = 0; at < inner; at++)
          sum += element(a, of_a->type, nth * of_a->stride + place(of_a, desc->turned_a, row, at)) *
                 element(b, of_b->type, nth * of_b->stride + place(of_b, desc->turned_b, at, column));
        store(d, of_d->type, nth * of_d->stride + place(of_d, 0, row, column), sum);
      }
  return SUCCESS;
}
