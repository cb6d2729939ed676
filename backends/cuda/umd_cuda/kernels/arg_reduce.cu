// Position of the largest or smallest element of a row. Generated: T, Number, NUMBER(v), BEFORE(a, b) (whether a wins
// over b by value).
#include "rows.cuh"

// Whether element (a, at) wins over (b, other): NaN over numbers, then by value, then by position; -1 is no element.
__device__ inline bool wins(Number a, long long at, Number b, long long other, bool last) {
  if (at < 0 || other < 0) return other < 0 && at >= 0;
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && BEFORE(a, b)) return true;
  if (!a_nan && BEFORE(b, a)) return false;
  return last ? at > other : at < other;
}

UMD_SIGNATURE {
  __shared__ Number values[32];
  __shared__ long long positions[32];
  const Index rows = product(args.outer, OUTER_RANK);
  const Index length = product(args.inner, INNER_RANK);
  const bool last = args.select_last != 0;
  for (Index row = ROWS_FIRST; row < rows; row += ROWS_STEP) {
    const Offset start = (Offset)args.x_offset + place(row, args.outer, args.x_strides, OUTER_RANK);
    Number best = 0;
    long long at = -1;
    for (Index i = threadIdx.x; i < length; i += blockDim.x) {
      const Number value = NUMBER(x[start + place(i, args.inner, args.x_strides + OUTER_RANK, INNER_RANK)]);
      if (wins(value, (long long)i, best, at, last)) {
        best = value;
        at = (long long)i;
      }
    }
    if (blockDim.x > 1) {
      for (int apart = 16; apart > 0; apart >>= 1) {
        const Number value = __shfl_xor_sync(0xffffffffu, best, apart);
        const long long other = __shfl_xor_sync(0xffffffffu, at, apart);
        if (wins(value, other, best, at, last)) {
          best = value;
          at = other;
        }
      }
    }
    if (blockDim.x > 32) {
      __syncthreads();
      if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = best;
        positions[threadIdx.x / 32] = at;
      }
      __syncthreads();
      for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
        if (wins(values[warp], positions[warp], best, at, last)) {
          best = values[warp];
          at = positions[warp];
        }
      }
    }
    if (threadIdx.x == 0) {
      out[(Offset)args.out_offset + place(row, args.outer, args.out_strides, OUTER_RANK)] = at < 0 ? 0 : at;
    }
  }
}
