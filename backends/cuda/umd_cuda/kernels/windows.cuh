// Window geometry. Along each spatial axis: input = output · window_stride - pad + tap · dilation.
struct Range {
  Offset low, high;  // [low, high)
};

// Returns the t in [0, count) for which low <= start + t · step < high. step >= 0.
__device__ inline Range steps_inside(Offset start, Offset step, Offset count, Offset low, Offset high) {
  Range range = {0, count};
  if (count == 0) return range;  // then the step is bounded by nothing
  if (step == 0) {
    if (start < low || start >= high) range.high = 0;
    return range;
  }
  if (start < low) range.low = (low - start + step - 1) / step;
  if (start >= high) {
    range.high = 0;
  } else {
    const Offset last = (high - 1 - start) / step + 1;
    if (last < count) range.high = last;
  }
  if (range.high < range.low) range.high = range.low;
  return range;
}

// Returns the outputs o in [0, outputs) for which o · stride is `at`.
__device__ inline Range outputs_at(Offset at, Offset stride, Offset outputs) {
  Range range = {0, 0};
  if (stride == 0) {
    if (at == 0) range.high = outputs;
  } else if (at >= 0 && at % stride == 0 && at / stride < outputs) {
    range.low = at / stride;
    range.high = range.low + 1;
  }
  return range;
}

// Returns the number of index tuples in a box of ranges.
__device__ inline Index ranges_size(const Range* ranges) {
  Index total = 1;
  for (int axis = 0; axis < SPATIAL; ++axis) total *= (Index)(ranges[axis].high - ranges[axis].low);
  return total;
}

// Writes the i-th (row-major) index tuple of a box of ranges.
__device__ inline void tuple_at(Index i, const Range* ranges, Offset* tuple) {
  for (int axis = SPATIAL - 1; axis > 0; --axis) {
    const Index extent = (Index)(ranges[axis].high - ranges[axis].low);
    const Index rest = i / extent;
    tuple[axis] = ranges[axis].low + (Offset)(i - rest * extent);
    i = rest;
  }
  tuple[0] = ranges[0].low + (Offset)i;
}

// Takes the trailing spatial position off a row-major index.
__device__ inline Index split_spatial(Index i, const unsigned long long* extents, Offset* tuple) {
  for (int axis = SPATIAL - 1; axis >= 0; --axis) {
    const Index rest = i / (Index)extents[axis];
    tuple[axis] = (Offset)(i - rest * (Index)extents[axis]);
    i = rest;
  }
  return i;
}

// Returns the sum of position · stride.
__device__ inline Offset spatial_offset(const Offset* tuple, const long long* strides) {
  Offset at = 0;
  for (int axis = 0; axis < SPATIAL; ++axis) at += tuple[axis] * (Offset)strides[axis];
  return at;
}

#define STRIDE(axis) ((Offset)args.window_strides[axis])
#define DILATION(axis) ((Offset)args.dilations[axis])
#define PAD(axis) ((Offset)args.pads[axis])
