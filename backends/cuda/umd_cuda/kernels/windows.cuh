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
  if (start < low) range.low = step == 1 ? low - start : (low - start + step - 1) / step;
  if (start >= high) {
    range.high = 0;
  } else {
    const Offset last = step == 1 ? high - start : (high - 1 - start) / step + 1;
    if (last < count) range.high = last;
  }
  if (range.high < range.low) range.high = range.low;
  return range;
}

// Which taps k of one axis can meet an input at all: k · dilation = i + pad (modulo stride). They exist where `divisor`
// divides i + pad, and follow each other by `step`; the output falls by `fall` from each to the next.
struct Lattice {
  Offset divisor, step, fall, inverse;  // fall · inverse = 1 (modulo step)
};

// Returns the lattice of a stride > 0, by the extended Euclidean algorithm.
__device__ inline Lattice lattice_of(Offset stride, Offset dilation) {
  Offset rest = stride, next = dilation, factor = 0, next_factor = 1;
  while (next != 0) {
    const Offset quotient = rest / next, r = rest - quotient * next, f = factor - quotient * next_factor;
    rest = next, factor = next_factor, next = r, next_factor = f;
  }
  const Offset step = stride / rest, inverse = factor % step;
  return {rest, step, dilation / rest, inverse < 0 ? inverse + step : inverse};
}

// Returns a · b modulo m for a and b in [0, m).
__device__ inline Offset times_modulo(Offset a, Offset b, Offset m) {
  if ((long long)m < 0x80000000LL) return (Offset)((long long)a * b % m);
  Offset result = 0;
  for (; b > 0; b >>= 1, a = (a + a) % m) {
    if (b & 1) result = (result + a) % m;
  }
  return result;
}

// Returns the first tap >= 0 that meets the input at `i + pad`, which the lattice's divisor divides.
__device__ inline Offset first_tap(Offset at, const Lattice& lattice) {
  if (lattice.step == 1) return 0;
  const Offset rest = at / lattice.divisor % lattice.step;
  return times_modulo(rest < 0 ? rest + lattice.step : rest, lattice.inverse, lattice.step);
}

// The pairs (tap, output) that meet one input along one axis: number j is tap = first + j / spread · step and
// output = start - j / spread · fall + j % spread.
struct Meetings {
  Offset first, step, start, fall, spread, count;
};

// Returns the meetings at `i + pad`: no more than there are, so that all inputs together take no more steps than the
// table's work. taps and outputs are not 0; the lattice counts for a stride > 0 only.
__device__ inline Meetings meetings_at(Offset at, Offset stride, Offset dilation, const Lattice& lattice, Offset taps,
                                       Offset outputs) {
  if (stride == 0) {  // all outputs have one place
    if (dilation == 0) return {0, 1, 0, 0, outputs, at == 0 ? taps * outputs : 0};
    const bool met = at >= 0 && at % dilation == 0 && at / dilation < taps;
    return {met ? at / dilation : 0, 1, 0, 0, outputs, met ? outputs : 0};
  }
  Meetings found = {0, lattice.step, 0, lattice.fall, 1, 0};
  if (at % lattice.divisor != 0) return found;
  found.first = first_tap(at, lattice);
  if (found.first >= taps) return found;
  found.start = (at - found.first * dilation) / stride;
  found.count = (taps - 1 - found.first) / found.step + 1;
  if (found.fall == 0) {
    if (found.start < 0 || found.start >= outputs) found.count = 0;
    return found;
  }
  const Offset skipped = found.start < outputs ? 0 : (found.start - outputs) / found.fall + 1;
  const Offset end = found.start < 0 ? 0 : found.start / found.fall + 1;
  found.count = (end < found.count ? end : found.count) - skipped;
  if (found.count < 0) found.count = 0;
  found.first += skipped * found.step;
  found.start -= skipped * found.fall;
  return found;
}

// Writes tap and output of the meeting with number j[axis] along each axis.
__device__ __forceinline__ void meeting_at(const Offset* j, const Meetings* meetings, Offset* k, Offset* o) {
#pragma unroll
  for (int axis = 0; axis < SPATIAL; ++axis) {
    const Meetings& own = meetings[axis];
    const Offset turn = own.spread == 1 ? j[axis] : j[axis] / own.spread;
    k[axis] = own.first + turn * own.step;
    o[axis] = own.start - turn * own.fall + (own.spread == 1 ? 0 : j[axis] - turn * own.spread);
  }
}

// Steps to the next (row-major) numbers j.
__device__ __forceinline__ void next_meeting(const Meetings* meetings, Offset* j) {
#pragma unroll
  for (int axis = SPATIAL - 1; axis > 0; --axis) {
    if (++j[axis] < meetings[axis].count) return;
    j[axis] = 0;
  }
  ++j[0];
}

// Returns the number of meetings along all axes.
__device__ inline Index meetings_size(const Meetings* meetings) {
  Index total = 1;
  for (int axis = 0; axis < SPATIAL; ++axis) total *= (Index)meetings[axis].count;
  return total;
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

// Writes the first index tuple of a box of ranges, and steps to the next (row-major): no division on the way.
__device__ __forceinline__ void first_tuple(const Range* ranges, Offset* tuple) {
  for (int axis = 0; axis < SPATIAL; ++axis) tuple[axis] = ranges[axis].low;
}
__device__ __forceinline__ void next_tuple(const Range* ranges, Offset* tuple) {
#pragma unroll
  for (int axis = SPATIAL - 1; axis > 0; --axis) {
    if (++tuple[axis] < ranges[axis].high) return;
    tuple[axis] = ranges[axis].low;
  }
  ++tuple[0];
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

// Declares `lattices`, and `met`: whether any window meets any input.
#define DECLARE_LATTICES                                                                       \
  Lattice lattices[SPATIAL] = {};                                                              \
  const bool met = product(args.output, SPATIAL) != 0 && product(args.kernel, SPATIAL) != 0;   \
  for (int axis = 0; axis < SPATIAL; ++axis) {                                                 \
    if (met && STRIDE(axis) != 0) lattices[axis] = lattice_of(STRIDE(axis), DILATION(axis)); \
  }

// Writes the meetings of the input at i.
#define MEETINGS(meetings, i)                                                                            \
  for (int axis = 0; met && axis < SPATIAL; ++axis) {                                                    \
    meetings[axis] = meetings_at(i[axis] + PAD(axis), STRIDE(axis), DILATION(axis), lattices[axis],      \
                                 (Offset)args.kernel[axis], (Offset)args.output[axis]);                  \
  }
