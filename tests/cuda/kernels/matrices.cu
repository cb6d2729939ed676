// Tiles in workgroup memory: a padded transpose, a tiled product with register blocking, a sparse product.
#define TILE_DIM 32
#define BLOCK_ROWS 8

extern "C" __global__ void transpose_no_bank_conflicts(float* odata, const float* idata, int width, int height) {
  __shared__ float tile[TILE_DIM][TILE_DIM + 1];
  int x = blockIdx.x * TILE_DIM + threadIdx.x;
  int y = blockIdx.y * TILE_DIM + threadIdx.y;
  for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS)
    if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = idata[(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * TILE_DIM + threadIdx.x;
  y = blockIdx.x * TILE_DIM + threadIdx.y;
  for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS)
    if (x < height && y + j < width) odata[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

template <int BM, int BN, int BK, int TM>
__global__ void sgemm(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C) {
  __shared__ __align__(16) float As[BM * BK], Bs[BK * BN];
  const int col = threadIdx.x % BN, row = threadIdx.x / BN;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  float acc[TM] = {0.0f};
  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = threadIdx.x; i < BM * BK; i += blockDim.x) {
      int m = m0 + i / BK, k = k0 + i % BK;
      As[i] = (m < M && k < K) ? A[m * K + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < BK * BN; i += blockDim.x) {
      int k = k0 + i / BN, n = n0 + i % BN;
      Bs[i] = (k < K && n < N) ? B[k * N + n] : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < BK; ++k) {
      float b = Bs[k * BN + col];
      for (int i = 0; i < TM; ++i) acc[i] += As[(row * TM + i) * BK + k] * b;
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    int m = m0 + row * TM + i, n = n0 + col;
    if (m < M && n < N) C[m * N + n] = alpha * acc[i] + beta * C[m * N + n];
  }
}

// Compressed rows, one warp per row.
extern "C" __global__ void csr_spmv(int rows, const int* __restrict__ indptr, const int* __restrict__ indices,
                                    const double* __restrict__ data, const double* __restrict__ x, double* y) {
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / warpSize;
  const int lane = threadIdx.x % warpSize;
  if (warp >= rows) return;
  double sum = 0;
  for (int j = indptr[warp] + lane; j < indptr[warp + 1]; j += warpSize) sum += data[j] * __ldg(x + indices[j]);
  for (int offset = warpSize / 2; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (lane == 0) y[warp] = sum;
}

// All pairs in tiles of float4.
__device__ float3 body_interaction(float4 bi, float4 bj, float3 ai) {
  float3 r = {bj.x - bi.x, bj.y - bi.y, bj.z - bi.z};
  float d = r.x * r.x + r.y * r.y + r.z * r.z + 1e-3f;
  float inv = rsqrtf(d);
  float s = bj.w * inv * inv * inv;
  ai.x += r.x * s;
  ai.y += r.y * s;
  ai.z += r.z * s;
  return ai;
}

extern "C" __global__ void forces(const float4* X, float4* A, int n) {
  extern __shared__ float4 shPosition[];
  int gtid = blockIdx.x * blockDim.x + threadIdx.x;
  float4 mine = gtid < n ? X[gtid] : float4{0, 0, 0, 0};
  float3 acc = {0.0f, 0.0f, 0.0f};
  for (int i = 0; i < n; i += blockDim.x) {
    int idx = i + threadIdx.x;
    shPosition[threadIdx.x] = idx < n ? X[idx] : make_float4(0, 0, 0, 0);
    __syncthreads();
    for (int k = 0; k < blockDim.x; ++k) acc = body_interaction(mine, shPosition[k], acc);
    __syncthreads();
  }
  if (gtid < n) A[gtid] = make_float4(acc.x, acc.y, acc.z, 0.0f);
}
