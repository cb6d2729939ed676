// Gradients of softmax and log-softmax. Generated: T, Number, NUMBER(v), STORE_NUMBER(v), EXP, IS_LOG.
#include "rows.cuh"
#define SUM(a, b) ((a) + (b))
DEFINE_ROW_REDUCTION(sum_row, Number, SUM)

UMD_SIGNATURE {
  __shared__ Number partial[32];
  const Index rows = product(args.outer, OUTER_RANK);
  const Index length = product(args.inner, INNER_RANK);
  for (Index row = ROWS_FIRST; row < rows; row += ROWS_STEP) {
    const T* dy_row = dy + (Offset)args.dy_offset + place(row, args.outer, args.dy_strides, OUTER_RANK);
    const T* y_row = y + (Offset)args.y_offset + place(row, args.outer, args.y_strides, OUTER_RANK);
    T* dx_row = dx + (Offset)args.dx_offset + place(row, args.outer, args.dx_strides, OUTER_RANK);
    Number total = 0;
    for (Index i = threadIdx.x; i < length; i += blockDim.x) {
      const Number slope = NUMBER(dy_row[place(i, args.inner, args.dy_strides + OUTER_RANK, INNER_RANK)]);
#if IS_LOG
      total += slope;
#else
      total += slope * NUMBER(y_row[place(i, args.inner, args.y_strides + OUTER_RANK, INNER_RANK)]);
#endif
    }
    total = sum_row(total, partial);
    for (Index i = threadIdx.x; i < length; i += blockDim.x) {
      const Number slope = NUMBER(dy_row[place(i, args.inner, args.dy_strides + OUTER_RANK, INNER_RANK)]);
      const Number value = NUMBER(y_row[place(i, args.inner, args.y_strides + OUTER_RANK, INNER_RANK)]);
#if IS_LOG
      const Number result = slope - EXP(value) * total;
#else
      const Number result = value * (slope - total);
#endif
      dx_row[place(i, args.inner, args.dx_strides + OUTER_RANK, INNER_RANK)] = STORE_NUMBER(result);
    }
  }
}
