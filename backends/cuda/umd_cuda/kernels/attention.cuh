// Attention kernels: a row is a query, or a key, of one batch element. blockDim.x invocations (1, or a multiple of 32)
// share a row, blockDim.y rows are worked on at a time. Scores are made where they are needed and never stored.
#include "groups.cuh"
#define MOST_INVOCATIONS 256  // of a workgroup
#define ALONE 16              // sums that an invocation keeps which has a row to itself
#define SHARING 4             // and one that shares it

#define BATCHES product(args.outer, RANK)
#define QUERIES ((Index)args.queries)
#define KEYS ((Index)args.keys)
#define DEPTH ((Index)args.depth)
#define WIDTH ((Index)args.width)
// Where an operand's batch element begins, and its strides along the axes after the batch.
#define BATCH_START(name, z) (name + (Offset)args.name##_offset + place(z, args.outer, args.name##_strides, RANK))
#define STRIDE(name, axis) ((Offset)args.name##_strides[RANK + (axis)])

// A vector of an operand: its first element and the step from one to the next.
struct Vector {
  const T* start;
  Offset step;
};
#define ROW_OF(name, start, row) Vector{start + (Offset)(row) * STRIDE(name, 0), STRIDE(name, 1)}

__device__ __forceinline__ Number dot(const Vector& a, const Vector& b, Index count) {
  Number sum = 0;
  for (Index d = 0; d < count; ++d) {
    sum = FMA(NUMBER(a.start[(Offset)d * a.step]), NUMBER(b.start[(Offset)d * b.step]), sum);
  }
  return sum;
}

// Numbers [first, end), counted from 0.
struct Range {
  Index first, end;
};

// Returns which of `count` places lie from `at + low` to `at + high`.
__device__ __forceinline__ Range places_between(Index at, long long low, long long high, Index count) {
  const long long first = (long long)at + low, end = (long long)at + high + 1;  // every parameter is below 2^62
  const Index begin = first <= 0 ? 0 : first < (long long)count ? (Index)first : count;
  return {begin, end <= (long long)begin ? begin : end < (long long)count ? (Index)end : count};
}
#define KEYS_OF(i) places_between(i, args.low, args.high, KEYS)
#define QUERIES_OF(j) places_between(j, -args.high, -args.low, QUERIES)  // those that see key j

// What belongs to one batch element of the operands that scores are made of.
struct Heads {
  const T *q, *k, *v, *bias;
};
#define HEADS(z) Heads{BATCH_START(q, z), BATCH_START(k, z), BATCH_START(v, z), BATCH_START(bias, z)}

__device__ __forceinline__ Number score(const Heads& of, const Parameters& args, Index i, Index j) {
  const Number bias = NUMBER(of.bias[(Offset)i * STRIDE(bias, 0) + (Offset)j * STRIDE(bias, 1)]);
  return FMA((Number)args.scale, dot(ROW_OF(q, of.q, i), ROW_OF(k, of.k, j), DEPTH), bias);
}

__device__ __forceinline__ void meet() {
  if (blockDim.x > 32) {
    __syncthreads();
  } else if (blockDim.x > 1) {
    __syncwarp();
  }
}

// Writes out[w] = the sum over n in `range` of weight(n) · from[n][w], for `width` of w. Each invocation of the row finds
// one weight and leaves it in `shared`; then each adds up KEPT of the sums.
template <int KEPT, class Weight>
__device__ __forceinline__ void sum_weighted(Number* shared, Range range, Index width, Weight weight, const T* from,
                                             Offset from_row, Offset from_step, T* out,
                                             Offset out_step) {
  for (Index left = 0; left < width; left += KEPT * blockDim.x) {
    Number sums[KEPT] = {};
    for (Index start = range.first; start < range.end; start += blockDim.x) {
      const Index own = start + threadIdx.x, count = least(blockDim.x, range.end - start);
      if (own < range.end) shared[threadIdx.x] = weight(own);
      meet();
      for (Index n = 0; n < count; ++n) {
        const Number share = shared[n];
        const T* row = from + (Offset)(start + n) * from_row;
#pragma unroll
        for (int kept = 0; kept < KEPT; ++kept) {
          const Index w = left + kept * blockDim.x + threadIdx.x;
          if (w < width) sums[kept] = FMA(share, NUMBER(row[(Offset)w * from_step]), sums[kept]);
        }
      }
      meet();
    }
#pragma unroll
    for (int kept = 0; kept < KEPT; ++kept) {
      const Index w = left + kept * blockDim.x + threadIdx.x;
      if (w < width) out[(Offset)w * out_step] = STORE_NUMBER(sums[kept]);
    }
  }
}
#define SUM_WEIGHTED(...)                   \
  if (blockDim.x == 1) {                    \
    sum_weighted<ALONE>(__VA_ARGS__);       \
  } else {                                  \
    sum_weighted<SHARING>(__VA_ARGS__);     \
  }
