// Convolutions as matrix products whose operands are gathered while they are loaded: no matrix is ever laid out.
// Along each spatial axis a position is what the column gives plus what the depth gives.
#include "tiles.cuh"

// What one place in depth means: offsets in both operands, and its share of the position in b.
struct Tap {
  Offset a, b, at[SPATIAL];
};

// A gathered product: a (rows, depth) lies at a + row · a_row + tap.a, b (depth, columns) in a box of spatial extents.
struct Gather {
  const T* a;
  Offset a_row;
  const T* b;
  const unsigned long long* extents;
  const long long* strides;
  Index rows, columns;
  Walk b_walk;
};

// Makes the tiles of a gathered product over depth [first, last). tap_at(d) returns a Tap, column_at(n, at) writes the
// column's share of the position and returns its offset in b, store(row, column, sum) takes a result.
template <class TapAt, class ColumnAt, class Store>
__device__ __forceinline__ void gathered_product(const Gather& gather, Slices& slices, Tap (*taps)[SLICE], Index first,
                                                 Index last, TapAt tap_at, ColumnAt column_at, Store store) {
  for (Index top = (Index)blockIdx.y * TILE; top < gather.rows; top += (Index)gridDim.y * TILE) {
    for (Index left = (Index)blockIdx.x * TILE; left < gather.columns; left += (Index)gridDim.x * TILE) {
      const Index row = top + lane_of(ALONG_DEPTH, 0), column = left + lane_of(gather.b_walk, 0);
      Offset own[SPATIAL] = {}, b_column = 0;
      if (column < gather.columns) b_column = column_at(column, own);
      const auto prepare = [&](Index start, unsigned turn) {
        if (threadIdx.x < SLICE && start + threadIdx.x < last) taps[turn][threadIdx.x] = tap_at(start + threadIdx.x);
      };
      const auto tap_of = [&](Index start, unsigned d) -> const Tap& { return taps[(start - first) / SLICE % 2][d]; };
      prepare(first, 0);
      __syncthreads();
      const Sums sums = sum_tile(
          slices, first, last, ALONG_DEPTH, gather.b_walk, prepare,
          [&](Index start, Number* values) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const unsigned d = depth_of(ALONG_DEPTH, j);
              values[j] = 0;
              if (row < gather.rows && start + d < last) {
                values[j] = NUMBER(gather.a[(Offset)row * gather.a_row + tap_of(start, d).a]);
              }
            }
          },
          [&](Index start, Number* values) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const unsigned d = depth_of(gather.b_walk, j);
              values[j] = 0;
              if (column >= gather.columns || start + d >= last) continue;
              const Tap& tap = tap_of(start, d);
              bool inside = true;
              Offset at = b_column + tap.b;
#pragma unroll
              for (int axis = 0; axis < SPATIAL; ++axis) {
                const Offset position = own[axis] + tap.at[axis];
                inside = inside && position >= 0 && position < (Offset)gather.extents[axis];
                at += inside ? position * (Offset)gather.strides[axis] : 0;
              }
              if (inside) values[j] = NUMBER(gather.b[at]);
            }
          });
      for (int c = 0; c < 4; ++c) {
        const Index own_column = left + TILE_COLUMN(c);
        if (own_column >= gather.columns) continue;
        for (int r = 0; r < 4; ++r) {
          if (top + TILE_ROW(r) < gather.rows) store(top + TILE_ROW(r), own_column, sums.v[r][c]);
        }
      }
    }
  }
}
