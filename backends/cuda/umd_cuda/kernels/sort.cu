// The first `count` elements of every row in order, and their positions. Generated: T and Key (an element's bits, and
// the unsigned type that they are compared in), BITS of a key, and IS_FLOAT with INFINITE (the bits of infinity),
// IS_SIGNED or IS_BOOL.
//
// No memory is taken but the two results. An invocation alone keeps a heap of positions in `index`. A workgroup finds
// the count-th key by its digits, most significant first, gathers the positions of what comes up to it, and sorts these
// by digits, least significant first: positions are halves of an `index` element, and each pass moves them from one
// half to the other.
//
// A program that forgot a dependency may write to x and `index` meanwhile. So no position that is read back, and no
// slot that was counted out, is used without a look at its range.
#include "along.cuh"

#define SIGN ((Key)1 << (BITS - 1))
#define MOST (SIGN | (SIGN - 1))
#define SELECT_BITS 8
#define SORT_BITS 4
#define SELECT_DIGITS (1 << SELECT_BITS)
#define SORT_DIGITS (1 << SORT_BITS)
#define WIDEST 256  // invocations of a workgroup

typedef unsigned long long Slot;  // an element of `index`

// A row: where it lies, and how many elements it has and are wanted.
struct Row {
  const T* x;
  Slot* index;
  Offset x_step, index_step;
  Index length, held;
  bool descending;
};

// Returns a number in the order of the elements: both zeros are equal, and NaN is the largest.
__device__ __forceinline__ Key key_at(const Row& row, Index i) {
  Key key = (Key)row.x[(Offset)i * row.x_step];
#if IS_FLOAT
  const Key size = key & (SIGN - 1);
  if (size > INFINITE) {
    key = MOST;
  } else {
    key = size != 0 && key != size ? MOST & ~key : size | SIGN;
  }
#elif IS_SIGNED
  key ^= SIGN;
#elif IS_BOOL
  key = key != 0;
#endif
  return row.descending ? MOST & ~key : key;
}

__device__ __forceinline__ Slot& slot(const Row& row, Index j) { return row.index[(Offset)j * row.index_step]; }

// Returns a position that was read back from a slot.
__device__ __forceinline__ Index checked(const Row& row, Slot position) {
  return position < row.length ? (Index)position : 0;
}

// Half of a slot, as the position of an element.
__device__ __forceinline__ unsigned& half_of(const Row& row, Index j, int which) {
  return reinterpret_cast<unsigned*>(&slot(row, j))[which];
}

// One invocation: a heap with the last of the order on top.

__device__ inline bool comes_before(const Row& row, Slot a, Slot b) {
  const Key first = key_at(row, checked(row, a)), second = key_at(row, checked(row, b));
  return first < second || (first == second && a < b);
}

// Puts a position into the heap of `count` slots from slot j downward.
__device__ inline void sift(const Row& row, Index j, Index count, Slot position) {
  while (j < count / 2) {
    Index child = 2 * j + 1;
    if (child + 1 < count && comes_before(row, slot(row, child), slot(row, child + 1))) ++child;
    if (!comes_before(row, position, slot(row, child))) break;
    slot(row, j) = slot(row, child);
    j = child;
  }
  slot(row, j) = position;
}

__device__ inline void sort_alone(const Row& row) {
  for (Index i = 0; i < row.held; ++i) slot(row, i) = (Slot)i;
  for (Index i = row.held / 2; i-- > 0;) sift(row, i, row.held, slot(row, i));
  Key last_key = key_at(row, checked(row, slot(row, 0)));
  for (Index i = row.held; i < row.length; ++i) {
    if (key_at(row, i) >= last_key) continue;  // of equal elements the first ones are held
    sift(row, 0, row.held, (Slot)i);
    last_key = key_at(row, checked(row, slot(row, 0)));
  }
  for (Index last = row.held - 1; last > 0; --last) {
    const Slot position = slot(row, last);
    slot(row, last) = slot(row, 0);
    sift(row, 0, last, position);
  }
}

// A workgroup. Each invocation has a share of neighbours.

struct Share {
  Index first, end;
};

__device__ inline Share share_of(Index count) {
  const Index each = count / blockDim.x + (count % blockDim.x != 0);
  const Index first = threadIdx.x * each;
  return {first < count ? first : count, first < count && count - first > each ? first + each : count};
}

// Returns the sum of the values of the invocations before this one.
__device__ inline unsigned sum_before(unsigned value, unsigned* partial) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = value;
  for (unsigned apart = 1; apart < 32; apart <<= 1) {
    const unsigned other = __shfl_up_sync(0xffffffffu, value, apart);
    if (lane >= apart) value += other;
  }
  __syncthreads();
  if (lane == 31) partial[warp] = value;
  __syncthreads();
  unsigned before = value - own;
  for (unsigned other = 0; other < warp; ++other) before += partial[other];
  return before;
}

// What is chosen: every key below `limit`, and the first `ties` elements whose key it is.
struct Choice {
  Key limit;
  unsigned ties;
};

__device__ inline Choice choose(const Row& row, unsigned* counts) {
  Choice choice = {0, (unsigned)row.held};
  for (int shift = (BITS - 1) / SELECT_BITS * SELECT_BITS; shift >= 0; shift -= SELECT_BITS) {
    __syncthreads();
    for (unsigned d = threadIdx.x; d < SELECT_DIGITS; d += blockDim.x) counts[d] = 0;
    __syncthreads();
    for (Index i = threadIdx.x; i < row.length; i += blockDim.x) {
      const Key rest = (key_at(row, i) ^ choice.limit) >> shift;
      if (rest < SELECT_DIGITS) atomicAdd(&counts[rest], 1u);  // the digits above are those of the limit
    }
    __syncthreads();
    unsigned digit = 0;
    while (digit < SELECT_DIGITS - 1 && counts[digit] < choice.ties) choice.ties -= counts[digit++];
    choice.limit |= (Key)digit << shift;
  }
  return choice;
}

// Writes the positions of the chosen elements to the slots' first halves, in the order of the row.
__device__ inline void gather_chosen(const Row& row, unsigned* counts, unsigned* partial) {
  const Choice choice = choose(row, counts);
  const Share share = share_of(row.length);
  unsigned below = 0, ties = 0;
  for (Index i = share.first; i < share.end; ++i) {
    const Key key = key_at(row, i);
    below += key < choice.limit;
    ties += key == choice.limit;
  }
  below = sum_before(below, partial);
  ties = sum_before(ties, partial);
  for (Index i = share.first; i < share.end; ++i) {
    const Key key = key_at(row, i);
    const bool is_tie = key == choice.limit;
    if (key < choice.limit || (is_tie && ties < choice.ties)) {
      const unsigned to = below + (ties < choice.ties ? ties : choice.ties);
      if (to < row.held) half_of(row, to, 0) = (unsigned)i;
    }
    below += key < choice.limit;
    ties += is_tie;
  }
}

__device__ __forceinline__ unsigned digit_at(const Row& row, unsigned position, int shift) {
  return (unsigned)(key_at(row, checked(row, position)) >> shift) % SORT_DIGITS;
}

// Moves the positions from one half of the slots to the other in the order of one digit of their keys; returns false
// where that is the order they have. `counts` holds a number a digit and invocation.
__device__ inline bool sort_digit(const Row& row, int shift, int from, unsigned* counts, unsigned* partial) {
  const Share share = share_of(row.held);
  for (unsigned d = 0; d < SORT_DIGITS; ++d) counts[d * blockDim.x + threadIdx.x] = 0;
  for (Index j = share.first; j < share.end; ++j) {
    ++counts[digit_at(row, half_of(row, j, from), shift) * blockDim.x + threadIdx.x];
  }
  __syncthreads();
  unsigned* own = counts + threadIdx.x * SORT_DIGITS;
  unsigned sum = 0;
  for (unsigned k = 0; k < SORT_DIGITS; ++k) sum += own[k];
  sum = sum_before(sum, partial);
  for (unsigned k = 0; k < SORT_DIGITS; ++k) {
    const unsigned count = own[k];
    own[k] = sum;
    sum += count;
  }
  __syncthreads();
  bool is_sorted = false;
  for (unsigned d = 0; d < SORT_DIGITS; ++d) {
    const unsigned end = d + 1 < SORT_DIGITS ? counts[(d + 1) * blockDim.x] : (unsigned)row.held;
    is_sorted = is_sorted || end - counts[d * blockDim.x] == row.held;
  }
  __syncthreads();
  if (is_sorted) return false;
  for (Index j = share.first; j < share.end; ++j) {
    const unsigned position = half_of(row, j, from);
    const unsigned to = counts[digit_at(row, position, shift) * blockDim.x + threadIdx.x]++;
    if (to < row.held) half_of(row, to, 1 - from) = position;
  }
  __syncthreads();
  return true;
}

__device__ inline void sort_together(const Row& row, unsigned* counts, unsigned* partial) {
  int from = 0;
  if (row.held < row.length) {
    gather_chosen(row, counts, partial);
  } else {
    for (Index j = threadIdx.x; j < row.held; j += blockDim.x) half_of(row, j, 0) = (unsigned)j;
  }
  __syncthreads();
  for (int shift = 0; shift < BITS; shift += SORT_BITS) {
    if (sort_digit(row, shift, from, counts, partial)) from = 1 - from;
  }
  for (Index j = threadIdx.x; j < row.held; j += blockDim.x) slot(row, j) = (Slot)half_of(row, j, from);
}

UMD_SIGNATURE {
  __shared__ unsigned counts[SORT_DIGITS * WIDEST];
  __shared__ unsigned partial[32];
  const Index rows = ROWS, length = (Index)args.length, count = (Index)args.count;
  const bool alone = blockDim.x == 1 || args.length > 0xffffffffull;
  for (Index r = ROWS_FIRST; r < rows; r += ROWS_STEP) {
    const Row row = {ROW_START(x, r), ROW_START(index, r), STEP(x), STEP(index), length,
                     count < length ? count : length, args.descending != 0};
    T* const sorted = ROW_START(values, r);
    if (row.held != 0 && alone) {
      if (threadIdx.x == 0) sort_alone(row);
    } else if (row.held != 0) {
      sort_together(row, counts, partial);
    }
    if (alone && blockDim.x > 1) __syncthreads();
    for (Index j = threadIdx.x; j < count; j += blockDim.x) {
      const bool is_there = j < row.held;
      if (!is_there) slot(row, j) = (Slot)-1;
      sorted[(Offset)j * STEP(values)] = is_there ? row.x[(Offset)checked(row, slot(row, j)) * row.x_step] : (T)0;
    }
  }
}
