// Kernels over the rows (outer, inner) of a box. Long rows are cut into parts, each with a workgroup of its own: pass 1
// leaves what it found of each part in scratch, pass 2 puts the parts of a row together, always in the same order.
#include "groups.cuh"
#define PACK (16 / (int)sizeof(T))
struct alignas(16) Pack {
  T v[PACK];
};

#define ROWS product(args.outer, OUTER_RANK)
#define LENGTH product(args.inner, INNER_RANK)
#define ROW_START(name, row) \
  (name + (Offset)args.name##_offset + place(row, args.outer, args.name##_strides, OUTER_RANK))
#define INNER(name, i) place(i, args.inner, args.name##_strides + OUTER_RANK, INNER_RANK)

__device__ __forceinline__ bool is_aligned(const T* at) { return (unsigned long long)at % sizeof(Pack) == 0; }

// A row's elements [begin, end).
struct Part {
  Index row, begin, end;
};

// Returns the n-th part when every row has `parts`.
__device__ __forceinline__ Part part_at(Index n, Index parts, Index length) {
  if (parts == 1) return {n, 0, length};
  const Index share = ((length + parts - 1) / parts + PACK - 1) / PACK * PACK, row = n / parts;
  const Index begin = least((n - row * parts) * share, length);
  return {row, begin, begin + least(share, length - begin)};
}

// Calls take(j, i, value) for the elements i of a part that are this invocation's: packs of PACK in a row, j counts
// within the pack. Which they are depends on blockDim.x alone; whole packs of a dense, aligned row are 16-byte loads.
template <class Take>
__device__ __forceinline__ void each(const T* row, const Part& part, const unsigned long long* extents,
                                     const long long* strides, Take take) {
  const bool dense = is_dense(extents, strides, INNER_RANK);
  const Index step = (Index)blockDim.x * PACK;
  Index i = part.begin + threadIdx.x * PACK;
  if (dense && is_aligned(row + part.begin)) {
#pragma unroll 4
    for (; i < part.end && part.end - i >= PACK; i += step) {
      const Pack pack = *reinterpret_cast<const Pack*>(row + i);
#pragma unroll
      for (int j = 0; j < PACK; ++j) take(j, i + j, NUMBER(pack.v[j]));
    }
  }
  for (; i < part.end; i += step) {
    const int count = (int)least(part.end - i, PACK);
    for (int j = 0; j < count; ++j) {
      take(j, i + j, NUMBER(row[dense ? (Offset)(i + j) : place(i + j, extents, strides, INNER_RANK)]));
    }
  }
}
#define EACH(name, part, ...) each(name##_row, part, args.inner, args.name##_strides + OUTER_RANK, __VA_ARGS__)

// Writes make(j, i, value of `from`) to the same elements of `to`.
template <class Make>
__device__ __forceinline__ void transform(const T* from, T* to, const Part& part, const unsigned long long* extents,
                                          const long long* strides, const long long* to_strides, Make make) {
  const bool dense = is_dense(extents, to_strides, INNER_RANK);
  const Index step = (Index)blockDim.x * PACK;
  Index i = part.begin + threadIdx.x * PACK;
  if (dense && is_dense(extents, strides, INNER_RANK) && is_aligned(from + part.begin) && is_aligned(to + part.begin)) {
#pragma unroll 2
    for (; i < part.end && part.end - i >= PACK; i += step) {
      const Pack pack = *reinterpret_cast<const Pack*>(from + i);
      Pack made;
#pragma unroll
      for (int j = 0; j < PACK; ++j) made.v[j] = STORE_NUMBER(make(j, i + j, NUMBER(pack.v[j])));
      *reinterpret_cast<Pack*>(to + i) = made;
    }
  }
  for (; i < part.end; i += step) {
    const int count = (int)least(part.end - i, PACK);
    for (int j = 0; j < count; ++j) {
      const Number value = NUMBER(from[place(i + j, extents, strides, INNER_RANK)]);
      to[dense ? (Offset)(i + j) : place(i + j, extents, to_strides, INNER_RANK)] = STORE_NUMBER(make(j, i + j, value));
    }
  }
}
#define TRANSFORM(from, to, part, ...)                                                        \
  transform(from##_row, to##_row, part, args.inner, args.from##_strides + OUTER_RANK, \
            args.to##_strides + OUTER_RANK, __VA_ARGS__)

// Returns PACK values combined into one.
#define DEFINE_FOLD(NAME, COMBINE)                                     \
  __device__ __forceinline__ Number NAME(const Number* values) {       \
    Number value = values[0];                                          \
    for (int j = 1; j < PACK; ++j) value = COMBINE(value, values[j]);  \
    return value;                                                      \
  }

// PACK equal values.
struct Lanes {
  Number v[PACK];
  __device__ __forceinline__ explicit Lanes(Number value) {
    for (int j = 0; j < PACK; ++j) v[j] = value;
  }
};
