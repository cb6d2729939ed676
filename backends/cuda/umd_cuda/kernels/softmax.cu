// Softmax and log-softmax. Generated: T, Number, NUMBER(v), STORE_NUMBER(v), EXP, LOG, INFINITE, IS_LOG, and KEEPS:
// whether T holds an exponential exactly, so that y can keep it between the passes.
#include "rows.cuh"
#define LARGER(a, b) ((a) != (a) || (a) > (b) ? (a) : (b))
#define SUM(a, b) ((a) + (b))
__device__ inline Number larger(Number a, Number b) { return LARGER(a, b); }
DEFINE_ROW_REDUCTION(max_row, Number, larger)
DEFINE_ROW_REDUCTION(sum_row, Number, SUM)

UMD_SIGNATURE {
  __shared__ Number partial[32];
  const Index rows = product(args.outer, OUTER_RANK);
  const Index length = product(args.inner, INNER_RANK);
  for (Index row = ROWS_FIRST; row < rows; row += ROWS_STEP) {
    const T* x_row = x + (Offset)args.x_offset + place(row, args.outer, args.x_strides, OUTER_RANK);
    T* y_row = y + (Offset)args.y_offset + place(row, args.outer, args.y_strides, OUTER_RANK);
    Number most = -INFINITE;
    for (Index i = threadIdx.x; i < length; i += blockDim.x) {
      most = larger(most, NUMBER(x_row[place(i, args.inner, args.x_strides + OUTER_RANK, INNER_RANK)]));
    }
    most = max_row(most, partial);
    Number total = 0;
    for (Index i = threadIdx.x; i < length; i += blockDim.x) {
      const Number e = EXP(NUMBER(x_row[place(i, args.inner, args.x_strides + OUTER_RANK, INNER_RANK)]) - most);
#if KEEPS && !IS_LOG
      y_row[place(i, args.inner, args.y_strides + OUTER_RANK, INNER_RANK)] = STORE_NUMBER(e);
#endif
      total += e;
    }
    total = sum_row(total, partial);
#if IS_LOG
    total = LOG(total);
#else
    total = (Number)1 / total;
#endif
    for (Index i = threadIdx.x; i < length; i += blockDim.x) {
      T* result = y_row + place(i, args.inner, args.y_strides + OUTER_RANK, INNER_RANK);
#if KEEPS && !IS_LOG
      *result = STORE_NUMBER(NUMBER(*result) * total);
#else
      const Number shifted = NUMBER(x_row[place(i, args.inner, args.x_strides + OUTER_RANK, INNER_RANK)]) - most;
#if IS_LOG
      *result = STORE_NUMBER(shifted - total);
#else
      *result = STORE_NUMBER(EXP(shifted) * total);
#endif
#endif
    }
  }
}
