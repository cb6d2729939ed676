// Softmax and log-softmax. Generated: T, Number, NUMBER(v), STORE_NUMBER(v), EXP, LOG, INFINITE, IS_LOG, and KEEPS:
// whether T holds an exponential exactly, so that y can keep it between the passes.
#include "rows.cuh"
#define LARGER(a, b) ((a) != (a) || (a) > (b) ? (a) : (b))
#define SUM(a, b) ((a) + (b))
__device__ inline Number larger(Number a, Number b) { return LARGER(a, b); }
DEFINE_ROW_REDUCTION(max_row, Number, larger)
DEFINE_ROW_REDUCTION(sum_row, Number, SUM)
DEFINE_FOLD(fold_max, larger)
DEFINE_FOLD(fold_sum, SUM)

struct Exponentials {
  Number most, total;  // the largest element, and the sum of exp(element - most)
};

UMD_SIGNATURE {
  __shared__ Number partial[32];
  Exponentials* const found = SCRATCH(Exponentials);
  const Index rows = ROWS, length = LENGTH, parts = PASS ? PARTS : 1;
  for (Index n = ROWS_FIRST; n < rows * parts; n += ROWS_STEP) {
    const Part part = part_at(n, parts, length);
    const T* x_row = ROW_START(x, part.row);
    T* y_row = ROW_START(y, part.row);
    Number most, total;
    if (PASS == 2) {
      const Exponentials* of_row = found + part.row * parts;
      most = -INFINITE;
      for (Index i = threadIdx.x; i < parts; i += blockDim.x) most = larger(most, of_row[i].most);
      most = max_row(most, partial);
      total = 0;
      for (Index i = threadIdx.x; i < parts; i += blockDim.x) {
        if (of_row[i].most != -INFINITE) total += of_row[i].total * EXP(of_row[i].most - most);
      }
      total = sum_row(total, partial);
    } else {
      Lanes mosts(-INFINITE);
      EACH(x, part, [&](int j, Index, Number v) { mosts.v[j] = larger(mosts.v[j], v); });
      most = max_row(fold_max(mosts.v), partial);
      Lanes totals(0);
      const auto add = [&](int j, Index, Number v) {
        const Number e = EXP(v - most);
        totals.v[j] += e;
        return e;
      };
#if KEEPS && !IS_LOG
      if (PASS == 0) {
        TRANSFORM(x, y, part, add);
      } else {
        EACH(x, part, add);
      }
#else
      EACH(x, part, add);
#endif
      total = sum_row(fold_sum(totals.v), partial);
      if (PASS == 1) {
        if (threadIdx.x == 0) found[n] = Exponentials{most, total};
        continue;
      }
    }
#if IS_LOG
    total = LOG(total);
    TRANSFORM(x, y, part, [&](int, Index, Number v) { return v - most - total; });
#else
    total = (Number)1 / total;
#if KEEPS
    if (PASS == 0) {
      TRANSFORM(y, y, part, [&](int, Index, Number v) { return v * total; });
      continue;
    }
#endif
    TRANSFORM(x, y, part, [&](int, Index, Number v) { return EXP(v - most) * total; });
#endif
  }
}
