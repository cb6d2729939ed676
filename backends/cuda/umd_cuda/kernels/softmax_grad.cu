// Gradients of softmax and log-softmax. Generated: T, Number, NUMBER(v), STORE_NUMBER(v), EXP, IS_LOG.
#include "rows.cuh"
#define SUM(a, b) ((a) + (b))
DEFINE_ROW_REDUCTION(sum_row, Number, SUM)
DEFINE_FOLD(fold, SUM)

UMD_SIGNATURE {
  __shared__ Number partial[32];
  Number* const found = SCRATCH(Number);
  const Index rows = ROWS, length = LENGTH, parts = PASS ? PARTS : 1;
  for (Index n = ROWS_FIRST; n < rows * parts; n += ROWS_STEP) {
    const Part part = part_at(n, parts, length);
    const T* dy_row = ROW_START(dy, part.row);
    const T* y_row = ROW_START(y, part.row);
    T* dx_row = ROW_START(dx, part.row);
    Lanes totals(0);
    if (PASS == 2) {
      for (Index i = threadIdx.x; i < parts; i += blockDim.x) totals.v[0] += found[part.row * parts + i];
    } else {
#if IS_LOG
      EACH(dy, part, [&](int j, Index, Number slope) { totals.v[j] += slope; });
#else
      EACH(dy, part, [&](int j, Index i, Number slope) { totals.v[j] += slope * NUMBER(y_row[INNER(y, i)]); });
#endif
    }
    const Number total = sum_row(fold(totals.v), partial);
    if (PASS == 1) {
      if (threadIdx.x == 0) found[n] = total;
      continue;
    }
    TRANSFORM(dy, dx, part, [&](int, Index i, Number slope) {
      const Number value = NUMBER(y_row[INNER(y, i)]);
#if IS_LOG
      return slope - EXP(value) * total;
#else
      return value * (slope - total);
#endif
    });
  }
}
