// Matrix products by tiles: a workgroup of 256 makes TILE × TILE sums, each invocation 4 × 4 of them, from slices of
// both operands in workgroup memory. While one slice is used, the next is on its way.
#define TILE 64
#define SLICE 16

struct Slices {  // rows of 16 bytes' multiples, so that four neighbours are one load
  alignas(16) Number a[2][SLICE][TILE + 4];
  alignas(16) Number b[2][SLICE][TILE + 4];
};

// Four elements that one invocation loads of a slice: neighbours in memory are loaded by neighbours, or at once.
enum Walk {
  ALONG_DEPTH,  // four neighbours in depth, of one row or column
  ALONG_LANES,  // four neighbouring rows or columns, at one depth
  SPREAD        // one row or column, every fourth in depth: neighbouring invocations have neighbouring ones
};
__device__ __forceinline__ unsigned lane_of(Walk walk, int j) {
  return walk == ALONG_DEPTH ? threadIdx.x / 4 : walk == ALONG_LANES ? threadIdx.x % 16 * 4 + j : threadIdx.x % TILE;
}
__device__ __forceinline__ unsigned depth_of(Walk walk, int j) {
  if (walk == ALONG_DEPTH) return threadIdx.x % 4 * 4 + j;
  return walk == ALONG_LANES ? threadIdx.x / 16 : threadIdx.x / TILE + 4 * j;
}

struct Sums {
  Number v[4][4];
};
#define TILE_ROW(r) (threadIdx.x / 16 * 4 + (r))
#define TILE_COLUMN(c) (threadIdx.x % 16 * 4 + (c))

// Returns this invocation's sums over depth [first, last). load_a and load_b(start, values) load four elements of the
// slice that begins at `start`; prepare(start, turn) makes what they need of workgroup memory, a barrier before.
template <class Prepare, class LoadA, class LoadB>
__device__ __forceinline__ Sums sum_tile(Slices& slices, Index first, Index last, Walk a_walk, Walk b_walk,
                                         Prepare prepare, LoadA load_a, LoadB load_b) {
  Sums sums = {};
  Number a_next[4] = {}, b_next[4] = {};
  if (first < last) {
    load_a(first, a_next);
    load_b(first, b_next);
  }
  unsigned turn = 0;
  for (Index start = first; start < last; start += SLICE, turn ^= 1) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      slices.a[turn][depth_of(a_walk, j)][lane_of(a_walk, j)] = a_next[j];
      slices.b[turn][depth_of(b_walk, j)][lane_of(b_walk, j)] = b_next[j];
    }
    const bool more = last - start > SLICE;
    if (more) prepare(start + SLICE, turn ^ 1);
    __syncthreads();
    if (more) {
      load_a(start + SLICE, a_next);
      load_b(start + SLICE, b_next);
    }
#pragma unroll
    for (int d = 0; d < SLICE; ++d) {
      Number a_part[4], b_part[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a_part[j] = slices.a[turn][d][TILE_ROW(j)];
        b_part[j] = slices.b[turn][d][TILE_COLUMN(j)];
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums.v[r][c] += a_part[r] * b_part[c];
      }
    }
  }
  __syncthreads();  // the slices are free again
  return sums;
}

// Depth [first, last) of part n of `parts`, in whole slices.
struct Stretch {
  Index first, last;
};
__device__ __forceinline__ Stretch stretch_at(Index n, Index parts, Index depth) {
  const Index share = ((depth + parts - 1) / parts + SLICE - 1) / SLICE * SLICE, first = least(n * share, depth);
  return {first, first + least(share, depth - first)};
}
