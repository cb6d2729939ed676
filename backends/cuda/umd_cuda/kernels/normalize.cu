// Normalised rows, their means and reciprocal deviations. Generated: T, S, Number, NUMBER(v), STORE_NUMBER(v), SQRT.
// The parts' means and squared deviations are put together as by Chan, Golub and LeVeque, "Algorithms for computing the
// sample variance" (1983).
#include "rows.cuh"
#define SUM(a, b) ((a) + (b))
DEFINE_ROW_REDUCTION(sum_row, Number, SUM)
DEFINE_FOLD(fold, SUM)

struct Moments {
  Number middle, squares;  // mean, and sum of squared distances from it
};

UMD_SIGNATURE {
  __shared__ Number partial[32];
  Moments* const found = SCRATCH(Moments);
  const Index rows = ROWS, length = LENGTH, parts = PASS ? PARTS : 1;
  for (Index n = ROWS_FIRST; n < rows * parts; n += ROWS_STEP) {
    const Part part = part_at(n, parts, length);
    const T* x_row = ROW_START(x, part.row);
    Number middle, squares;
    if (PASS == 2) {
      const Moments* of_row = found + part.row * parts;
      Number total = 0;
      for (Index i = threadIdx.x; i < parts; i += blockDim.x) {
        const Part other = part_at(i, parts, length);
        total += of_row[i].middle * (Number)(other.end - other.begin);
      }
      middle = sum_row(total, partial) / (Number)length;
      total = 0;
      for (Index i = threadIdx.x; i < parts; i += blockDim.x) {
        const Part other = part_at(i, parts, length);
        const Number apart = of_row[i].middle - middle;
        total += of_row[i].squares + apart * apart * (Number)(other.end - other.begin);
      }
      squares = sum_row(total, partial);
    } else {
      const Index count = part.end - part.begin;
      Lanes totals(0);
      EACH(x, part, [&](int j, Index, Number v) { totals.v[j] += v; });
      middle = sum_row(fold(totals.v), partial) / (Number)(PASS && count == 0 ? 1 : count);
      Lanes sums(0);
      EACH(x, part, [&](int j, Index, Number v) { sums.v[j] += (v - middle) * (v - middle); });
      squares = sum_row(fold(sums.v), partial);
      if (PASS == 1) {
        if (threadIdx.x == 0) found[n] = Moments{middle, squares};
        continue;
      }
    }
    const Number scale = (Number)1 / SQRT(squares / (Number)length + (Number)args.epsilon);
    T* y_row = ROW_START(y, part.row);
    TRANSFORM(x, y, part, [&](int, Index, Number v) { return (v - middle) * scale; });
    if (threadIdx.x == 0 && n == part.row * parts) {
      *ROW_START(mean, part.row) = (S)middle;
      *ROW_START(rstd, part.row) = (S)scale;
    }
  }
}
