// Reductions: one result a row. Generated: T, Number (what is accumulated), NUMBER(v), STORE_NUMBER(v), FIRST (the
// result over nothing), IS_MEAN, COMBINE(a, b).
#include "rows.cuh"
DEFINE_ROW_REDUCTION(combine_row, Number, COMBINE)

UMD_SIGNATURE {
  __shared__ Number partial[32];
  const Index rows = product(args.outer, OUTER_RANK);
  const Index length = product(args.inner, INNER_RANK);
  for (Index row = ROWS_FIRST; row < rows; row += ROWS_STEP) {
    const Offset start = (Offset)args.x_offset + place(row, args.outer, args.x_strides, OUTER_RANK);
    Number total = FIRST;
    for (Index i = threadIdx.x; i < length; i += blockDim.x) {
      const Number value = NUMBER(x[start + place(i, args.inner, args.x_strides + OUTER_RANK, INNER_RANK)]);
      total = COMBINE(total, value);
    }
    total = combine_row(total, partial);
    if (threadIdx.x == 0) {
#if IS_MEAN
      total = total / (Number)length;
#endif
      out[(Offset)args.out_offset + place(row, args.outer, args.out_strides, OUTER_RANK)] = STORE_NUMBER(total);
    }
  }
}
