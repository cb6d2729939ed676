// Running sums, products, maxima and minima. Generated: T, Number (what neighbours are combined in), Carry (what runs
// along the row, wider for sums and products of floats), NUMBER(v), STORE_NUMBER(v), FIRST (the result over nothing),
// COMBINE(a, b).
#include "along.cuh"

#define EACH 4  // neighbours that one invocation takes at a time
#define WHOLE_WARP 0xffffffffu

// A row as the scan walks it: element i lies i steps from the start, which may be the row's end.
struct Walk {
  const T* from;
  T* to;
  Offset from_step, to_step;
  Index length;
  bool exclusive;
};

// The whole row by one invocation.
__device__ inline void scan_alone(const Walk& walk) {
  Carry total = FIRST;
  for (Index i = 0; i < walk.length; ++i) {
    const Carry before = total;
    total = COMBINE(total, (Carry)NUMBER(walk.from[(Offset)i * walk.from_step]));
    walk.to[(Offset)i * walk.to_step] = STORE_NUMBER((Number)(walk.exclusive ? before : total));
  }
}

// Combines one value of each invocation with those of all before it in the row: `before` is without its own, the result
// is that of all. Both depend on blockDim.x alone.
__device__ inline Number scan_invocations(Number value, Number* partial, Number& before) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (unsigned apart = 1; apart < 32; apart <<= 1) {
    const Number other = __shfl_up_sync(WHOLE_WARP, value, apart);
    if (lane >= apart) value = COMBINE(other, value);
  }
  before = __shfl_up_sync(WHOLE_WARP, value, 1);
  if (lane == 0) before = FIRST;
  Number total = __shfl_sync(WHOLE_WARP, value, 31);
  if (blockDim.x > 32) {
    __syncthreads();
    if (lane == 31) partial[warp] = value;
    __syncthreads();
    Number ahead = FIRST;
    total = FIRST;
    for (unsigned other = 0; other < blockDim.x / 32; ++other) {
      if (other == warp) ahead = total;
      total = COMBINE(total, partial[other]);
    }
    before = COMBINE(ahead, before);
  }
  return total;
}

// The row by blockDim.x invocations, so many times EACH elements at a time.
__device__ inline void scan_together(const Walk& walk, Number* partial) {
  Carry carry = FIRST;
  for (Index chunk = 0; chunk < walk.length; chunk += blockDim.x * EACH) {
    const Index first = chunk + threadIdx.x * EACH;
    Number own[EACH], total = FIRST, before;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const Number last = total;
      if (first + e < walk.length) {
        const Number value = NUMBER(walk.from[(Offset)(first + e) * walk.from_step]);
        total = COMBINE(total, value);
      }
      own[e] = walk.exclusive ? last : total;
    }
    total = scan_invocations(total, partial, before);
    const Carry start = COMBINE(carry, (Carry)before);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const Carry value = COMBINE(start, (Carry)own[e]);
      if (first + e < walk.length) walk.to[(Offset)(first + e) * walk.to_step] = STORE_NUMBER((Number)value);
    }
    carry = COMBINE(carry, (Carry)total);
  }
}

UMD_SIGNATURE {
  __shared__ Number partial[32];
  const Index rows = ROWS, length = (Index)args.length;
  const Offset last = args.reverse && length ? (Offset)(length - 1) : 0, sign = args.reverse ? -1 : 1;
  for (Index row = ROWS_FIRST; row < rows; row += ROWS_STEP) {
    const Walk walk = {ROW_START(x, row) + last * STEP(x), ROW_START(out, row) + last * STEP(out), sign * STEP(x),
                       sign * STEP(out), length, args.exclusive != 0};
    if (blockDim.x == 1) {
      scan_alone(walk);
    } else {
      scan_together(walk, partial);
    }
  }
}
