// Position of the largest or smallest element of a row. Generated: T, Number, NUMBER(v), BEFORE(a, b) (whether a wins
// over b by value).
#include "rows.cuh"

struct Best {
  Number value;
  long long at;  // -1: there is no element
};

// Returns the element that wins: NaN over numbers, then by value, then by position.
__device__ inline Best better(const Best& a, const Best& b, bool last) {
  if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return a_nan ? a : b;
  if (!a_nan && BEFORE(a.value, b.value)) return a;
  if (!a_nan && BEFORE(b.value, a.value)) return b;
  return (last ? a.at > b.at : a.at < b.at) ? a : b;
}

UMD_SIGNATURE {
  __shared__ Number values[32];
  __shared__ long long positions[32];
  Best* const found = SCRATCH(Best);
  const Index rows = ROWS, length = LENGTH, parts = PASS == 1 ? PARTS : 1;
  const bool last = args.select_last != 0;
  for (Index n = ROWS_FIRST; n < rows * parts; n += ROWS_STEP) {
    const Part part = part_at(n, parts, length);
    Best best = {0, -1};
    if (PASS == 2) {
      for (Index i = threadIdx.x; i < PARTS; i += blockDim.x) best = better(best, found[n * PARTS + i], last);
    } else {
      const T* x_row = ROW_START(x, part.row);
      EACH(x, part, [&](int, Index i, Number v) { best = better(best, Best{v, (long long)i}, last); });
    }
    if (blockDim.x > 1) {
      for (int apart = 16; apart > 0; apart >>= 1) {
        const Number value = __shfl_xor_sync(0xffffffffu, best.value, apart);
        const long long at = __shfl_xor_sync(0xffffffffu, best.at, apart);
        best = better(best, Best{value, at}, last);
      }
    }
    if (blockDim.x > 32) {
      __syncthreads();
      if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = best.value;
        positions[threadIdx.x / 32] = best.at;
      }
      __syncthreads();
      for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
        best = better(best, Best{values[warp], positions[warp]}, last);
      }
    }
    if (threadIdx.x != 0) continue;
    if (PASS == 1) {
      found[n] = best;
    } else {
      *ROW_START(out, part.row) = best.at < 0 ? 0 : best.at;
    }
  }
}
