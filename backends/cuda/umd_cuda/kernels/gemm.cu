// Batched matrix product: a workgroup of 256 makes a 64 × 64 tile, each invocation 4 × 4 of it. Generated: T, Number,
// NUMBER(v), STORE_NUMBER(v).
#define TILE 64
#define SLICE 32
#define LOADS (TILE * SLICE / 256)

UMD_SIGNATURE {
  __shared__ Number a_tile[SLICE][TILE + 4];
  __shared__ Number b_tile[SLICE][TILE + 4];
  const Index batches = product(args.batch, RANK);
  const Index rows = (Index)args.rows, columns = (Index)args.columns, depth = (Index)args.depth;
  const Offset a_row = (Offset)args.a_strides[RANK], a_deep = (Offset)args.a_strides[RANK + 1];
  const Offset b_deep = (Offset)args.b_strides[RANK], b_column = (Offset)args.b_strides[RANK + 1];
  // neighbours in the workgroup load neighbours in memory
  const bool a_by_row = a_deep != 1 && a_deep != -1;
  const bool b_by_deep = b_column != 1 && b_column != -1 && (b_deep == 1 || b_deep == -1);
  const unsigned across = threadIdx.x % 16, down = threadIdx.x / 16;
  for (Index z = blockIdx.z; z < batches; z += gridDim.z) {
    const T* a_batch = a + (Offset)args.a_offset + place(z, args.batch, args.a_strides, RANK);
    const T* b_batch = b + (Offset)args.b_offset + place(z, args.batch, args.b_strides, RANK);
    T* out_batch = out + (Offset)args.out_offset + place(z, args.batch, args.out_strides, RANK);
    for (Index top = (Index)blockIdx.y * TILE; top < rows; top += (Index)gridDim.y * TILE) {
      for (Index left = (Index)blockIdx.x * TILE; left < columns; left += (Index)gridDim.x * TILE) {
        Number sums[4][4] = {};
        for (Index start = 0; start < depth; start += SLICE) {
#pragma unroll
          for (int load = 0; load < LOADS; ++load) {
            const unsigned n = threadIdx.x + 256 * load;
            const unsigned a_r = a_by_row ? n % TILE : n / SLICE, a_d = a_by_row ? n / TILE : n % SLICE;
            const unsigned b_c = b_by_deep ? n / SLICE : n % TILE, b_d = b_by_deep ? n % SLICE : n / TILE;
            Number a_value = 0, b_value = 0;
            if (top + a_r < rows && start + a_d < depth) {
              a_value = NUMBER(a_batch[(Offset)(top + a_r) * a_row + (Offset)(start + a_d) * a_deep]);
            }
            if (left + b_c < columns && start + b_d < depth) {
              b_value = NUMBER(b_batch[(Offset)(start + b_d) * b_deep + (Offset)(left + b_c) * b_column]);
            }
            a_tile[a_d][a_r] = a_value;
            b_tile[b_d][b_c] = b_value;
          }
          __syncthreads();
#pragma unroll 16
          for (int d = 0; d < SLICE; ++d) {
            Number a_part[4], b_part[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              a_part[j] = a_tile[d][down * 4 + j];
              b_part[j] = b_tile[d][across * 4 + j];
            }
#pragma unroll
            for (int r = 0; r < 4; ++r) {
#pragma unroll
              for (int c = 0; c < 4; ++c) sums[r][c] += a_part[r] * b_part[c];
            }
          }
          __syncthreads();
        }
        for (int r = 0; r < 4; ++r) {
          const Index row = top + down * 4 + r;
          for (int c = 0; c < 4; ++c) {
            const Index column = left + across * 4 + c;
            if (row < rows && column < columns) {
              out_batch[(Offset)row * (Offset)args.out_strides[RANK] + (Offset)column * (Offset)args.out_strides[RANK + 1]] =
                  STORE_NUMBER(sums[r][c]);
            }
          }
        }
      }
    }
  }
}
