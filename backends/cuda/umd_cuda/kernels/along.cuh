// Kernels that go along one axis: a row an element of `outer`. blockDim.x invocations (1, or a multiple of 32) share a
// row, blockDim.y rows are worked on at a time.
#define ROWS product(args.outer, OUTER_RANK)
#define ROWS_FIRST ((Index)blockIdx.x * blockDim.y + threadIdx.y)
#define ROWS_STEP ((Index)gridDim.x * blockDim.y)
#define ROW_START(name, row) \
  (name + (Offset)args.name##_offset + place(row, args.outer, args.name##_strides, OUTER_RANK))
#define STEP(name) ((Offset)args.name##_strides[OUTER_RANK])
