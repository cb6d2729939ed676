// Reductions: one result a row. Generated: T, Number (what is accumulated), NUMBER(v), STORE_NUMBER(v), FIRST (the
// result over nothing), IS_MEAN, COMBINE(a, b).
#include "rows.cuh"
DEFINE_ROW_REDUCTION(combine_row, Number, COMBINE)
DEFINE_FOLD(fold, COMBINE)

UMD_SIGNATURE {
  __shared__ Number partial[32];
  Number* const found = SCRATCH(Number);
  const Index rows = ROWS, length = LENGTH, parts = PASS == 1 ? PARTS : 1;
  for (Index n = ROWS_FIRST; n < rows * parts; n += ROWS_STEP) {
    const Part part = part_at(n, parts, length);
    Lanes totals(FIRST);
    if (PASS == 2) {
      for (Index i = threadIdx.x; i < PARTS; i += blockDim.x) totals.v[0] = COMBINE(totals.v[0], found[n * PARTS + i]);
    } else {
      const T* x_row = ROW_START(x, part.row);
      EACH(x, part, [&](int j, Index, Number v) { totals.v[j] = COMBINE(totals.v[j], v); });
    }
    Number total = combine_row(fold(totals.v), partial);
    if (threadIdx.x != 0) continue;
    if (PASS == 1) {
      found[n] = total;
      continue;
    }
#if IS_MEAN
    total = total / (Number)length;
#endif
    *ROW_START(out, part.row) = STORE_NUMBER(total);
  }
}
