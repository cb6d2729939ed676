// Batched matrix product. A deep one of few tiles is cut along its depth: pass 1 leaves the products of the parts in
// scratch, pass 2 adds them up in order. Generated: T, Number, NUMBER(v), STORE_NUMBER(v).
#include "tiles.cuh"

struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Quad {
  T v[4];
};

// Loads the elements of one operand: `lanes` of its rows or columns from `left` on, whatever of them there is.
struct Side {
  const T* start;
  Offset lane_step, depth_step;
  Walk walk;
  Index lanes, left;

  __device__ __forceinline__ void load(Index deep, Index last, Number* values) const {
    const Index lane = left + lane_of(walk, 0), d = deep + depth_of(walk, 0);
    const bool along = walk == ALONG_DEPTH;
    const Index room = lane >= lanes || d >= last ? 0 : along ? last - d : lanes - lane;
    const Offset step = along ? depth_step : lane_step;
    const T* at = room ? start + (Offset)lane * lane_step + (Offset)d * depth_step : start;
    if (room >= 4 && step == 1 && (unsigned long long)at % alignof(Quad) == 0) {
      const Quad quad = *reinterpret_cast<const Quad*>(at);
#pragma unroll
      for (int j = 0; j < 4; ++j) values[j] = NUMBER(quad.v[j]);
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) values[j] = (Index)j < room ? NUMBER(at[j * step]) : (Number)0;
  }
};

UMD_SIGNATURE {
  __shared__ Slices slices;
  const Index batches = product(args.batch, RANK), rows = (Index)args.rows, columns = (Index)args.columns;
  const Index parts = PASS == 1 ? PARTS : 1, depth = (Index)args.depth;
  Number* const found = SCRATCH(Number);
  const Offset a_row = (Offset)args.a_strides[RANK], a_deep = (Offset)args.a_strides[RANK + 1];
  const Offset b_deep = (Offset)args.b_strides[RANK], b_column = (Offset)args.b_strides[RANK + 1];
  const bool a_by_row = a_deep != 1 && a_deep != -1;
  const bool b_by_deep = b_column != 1 && b_column != -1 && (b_deep == 1 || b_deep == -1);
#if PLANNED
  if (PASS == 2) {
    const Index count = batches * rows * columns;
    for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
      const Index row = e / columns, z = row / rows;
      Number sum = 0;
      for (Index part = 0; part < PARTS; ++part) sum += found[part * count + e];
      out[(Offset)args.out_offset + place(z, args.batch, args.out_strides, RANK) +
          (Offset)(row - z * rows) * (Offset)args.out_strides[RANK] +
          (Offset)(e - row * columns) * (Offset)args.out_strides[RANK + 1]] = STORE_NUMBER(sum);
    }
    return;
  }
#endif
  for (Index n = blockIdx.z; n < batches * parts; n += gridDim.z) {
    const Index part = n / batches, z = n - part * batches;
    const Stretch deep = stretch_at(part, parts, depth);
    T* out_batch = out + (Offset)args.out_offset + place(z, args.batch, args.out_strides, RANK);
    Side left = {a + (Offset)args.a_offset + place(z, args.batch, args.a_strides, RANK),
                 a_row, a_deep, a_by_row ? ALONG_LANES : ALONG_DEPTH, rows, 0};
    Side right = {b + (Offset)args.b_offset + place(z, args.batch, args.b_strides, RANK),
                  b_column, b_deep, b_by_deep ? ALONG_DEPTH : ALONG_LANES, columns, 0};
    for (left.left = (Index)blockIdx.y * TILE; left.left < rows; left.left += (Index)gridDim.y * TILE) {
      for (right.left = (Index)blockIdx.x * TILE; right.left < columns; right.left += (Index)gridDim.x * TILE) {
        const Sums sums = sum_tile(
            slices, deep.first, deep.last, left.walk, right.walk, [](Index, unsigned) {},
            [&](Index start, Number* values) { left.load(start, deep.last, values); },
            [&](Index start, Number* values) { right.load(start, deep.last, values); });
        for (int r = 0; r < 4; ++r) {
          const Index row = left.left + TILE_ROW(r);
          for (int c = 0; c < 4; ++c) {
            const Index column = right.left + TILE_COLUMN(c);
            if (row < rows && column < columns) {
              if (PASS == 1) {
                found[(n * rows + row) * columns + column] = sums.v[r][c];
              } else {
                out_batch[(Offset)row * (Offset)args.out_strides[RANK] +
                          (Offset)column * (Offset)args.out_strides[RANK + 1]] = STORE_NUMBER(sums.v[r][c]);
              }
            }
          }
        }
      }
    }
  }
}
