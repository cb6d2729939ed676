// Row kernels: blockDim.x invocations (1, or a multiple of 32) share a row, blockDim.y rows are worked on at a time.
// With 32 of them the row belongs to one warp and no barrier is met; with more, blockDim.y is 1.
#define ROWS_FIRST ((Index)blockIdx.x * blockDim.y + threadIdx.y)
#define ROWS_STEP ((Index)gridDim.x * blockDim.y)

// Defines NAME(value, partial): combines one value of each invocation of a row, the same for all of them, in an order
// that depends on blockDim.x alone.
#define DEFINE_ROW_REDUCTION(NAME, TYPE, COMBINE)                                                        \
  __device__ inline TYPE NAME(TYPE value, TYPE* partial) {                                               \
    if (blockDim.x == 1) return value;                                                                   \
    for (int apart = 16; apart > 0; apart >>= 1) {                                                       \
      const TYPE other = __shfl_xor_sync(0xffffffffu, value, apart);                                     \
      value = COMBINE(value, other);                                                                     \
    }                                                                                                    \
    if (blockDim.x > 32) {                                                                               \
      __syncthreads();                                                                                   \
      if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;                                      \
      __syncthreads();                                                                                   \
      value = partial[0];                                                                                \
      for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value = COMBINE(value, partial[warp]);     \
    }                                                                                                    \
    return value;                                                                                        \
  }
