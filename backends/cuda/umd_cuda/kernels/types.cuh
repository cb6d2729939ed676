// Index types and what every kernel shares. Generated text before this defines WIDE, the element types and Parameters.
#if WIDE
typedef unsigned long long Index;  // counts of elements
typedef long long Offset;          // positions in a binding, in elements
#else
typedef unsigned Index;
typedef int Offset;
#endif

struct Status {
  unsigned code;
  unsigned zero;
  long long value;
};

// Returns where element i (row-major) of a strided box lies, relative to its first element.
__device__ __forceinline__ Offset place(Index i, const unsigned long long* extents, const long long* strides,
                                        int rank) {
  Offset at = 0;
#pragma unroll
  for (int axis = rank - 1; axis > 0; --axis) {
    const Index extent = (Index)extents[axis];
    if (i < extent) return at + (Offset)i * (Offset)strides[axis];  // most boxes need no division at all
    if (extent == 1) continue;
    const Index rest = i / extent;
    at += (Offset)(i - rest * extent) * (Offset)strides[axis];
    i = rest;
  }
  return at + (Offset)i * (Offset)strides[0];
}

// Returns the product of extents.
__device__ __forceinline__ Index product(const unsigned long long* extents, int rank) {
  Index total = 1;
#pragma unroll
  for (int axis = 0; axis < rank; ++axis) total *= (Index)extents[axis];
  return total;
}

// Returns whether the box is row-major without gaps.
__device__ __forceinline__ bool is_dense(const unsigned long long* extents, const long long* strides, int rank) {
  long long step = 1;
  bool dense = true;
#pragma unroll
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (extents[axis] == 1) continue;
    dense = dense && strides[axis] == step;
    step *= (long long)extents[axis];
  }
  return dense;
}

// Returns whether every index of the box means the same element.
__device__ __forceinline__ bool is_scalar(const unsigned long long* extents, const long long* strides, int rank) {
  bool scalar = true;
#pragma unroll
  for (int axis = 0; axis < rank; ++axis) scalar = scalar && (extents[axis] == 1 || strides[axis] == 0);
  return scalar;
}

// The smaller of two counts.
__device__ __forceinline__ Index least(Index a, Index b) { return a < b ? a : b; }

// A planned kernel is launched once a pass. args.pass holds its number and, above 8 bits, into how many parts work is
// cut. Pass 0 is the whole work in one launch, right for any grid and block; the others share args.scratch.
#if PLANNED
#define PASS ((unsigned)(args.pass & 255))
#define PARTS ((Index)(args.pass >> 8))
#define SCRATCH(type) reinterpret_cast<type*>(args.scratch)
#else
#define PASS 0u
#define PARTS ((Index)1)
#define SCRATCH(type) static_cast<type*>(nullptr)
#endif

// This invocation's number in the grid, and how many there are.
#define INVOCATION ((Index)blockIdx.x * blockDim.x + threadIdx.x)
#define INVOCATIONS ((Index)gridDim.x * blockDim.x)
