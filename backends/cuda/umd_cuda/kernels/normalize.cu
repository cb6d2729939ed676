// Normalised rows, their means and reciprocal deviations. Generated: T, S, Number, NUMBER(v), STORE_NUMBER(v), SQRT.
#include "rows.cuh"
#define SUM(a, b) ((a) + (b))
DEFINE_ROW_REDUCTION(sum_row, Number, SUM)

UMD_SIGNATURE {
  __shared__ Number partial[32];
  const Index rows = product(args.outer, OUTER_RANK);
  const Index length = product(args.inner, INNER_RANK);
  for (Index row = ROWS_FIRST; row < rows; row += ROWS_STEP) {
    const T* x_row = x + (Offset)args.x_offset + place(row, args.outer, args.x_strides, OUTER_RANK);
    T* y_row = y + (Offset)args.y_offset + place(row, args.outer, args.y_strides, OUTER_RANK);
    Number total = 0;
    for (Index i = threadIdx.x; i < length; i += blockDim.x) {
      total += NUMBER(x_row[place(i, args.inner, args.x_strides + OUTER_RANK, INNER_RANK)]);
    }
    const Number middle = sum_row(total, partial) / (Number)length;
    total = 0;
    for (Index i = threadIdx.x; i < length; i += blockDim.x) {
      const Number apart = NUMBER(x_row[place(i, args.inner, args.x_strides + OUTER_RANK, INNER_RANK)]) - middle;
      total += apart * apart;
    }
    const Number variance = sum_row(total, partial) / (Number)length;
    const Number scale = (Number)1 / SQRT(variance + (Number)args.epsilon);
    for (Index i = threadIdx.x; i < length; i += blockDim.x) {
      const Number value = NUMBER(x_row[place(i, args.inner, args.x_strides + OUTER_RANK, INNER_RANK)]);
      y_row[place(i, args.inner, args.y_strides + OUTER_RANK, INNER_RANK)] = STORE_NUMBER((value - middle) * scale);
    }
    if (threadIdx.x == 0) {
      mean[(Offset)args.mean_offset + place(row, args.outer, args.mean_strides, OUTER_RANK)] = (S)middle;
      rstd[(Offset)args.rstd_offset + place(row, args.outer, args.rstd_strides, OUTER_RANK)] = (S)scale;
    }
  }
}
