// Reductions as public projects write them: warp shuffles, block sums in templates, the last block finishes.
#define WARP_SIZE 32
#define FULL_MASK 0xffffffffu

template <typename T>
__inline__ __device__ T warpReduceSum(T val) {
#pragma unroll
  for (int mask = WARP_SIZE / 2; mask > 0; mask >>= 1) val += __shfl_xor_sync(FULL_MASK, val, mask, WARP_SIZE);
  return val;
}

template <typename T>
__inline__ __device__ T blockReduceSum(T val) {
  static __shared__ T shared[32];
  int lane = threadIdx.x & 0x1f;
  int wid = threadIdx.x >> 5;
  val = warpReduceSum<T>(val);
  if (lane == 0) shared[wid] = val;
  __syncthreads();
  val = (threadIdx.x < (blockDim.x >> 5)) ? shared[lane] : (T)(0.0f);
  val = warpReduceSum<T>(val);
  return val;
}

template <typename T, int ITEMS>
__global__ void row_sum(const T* __restrict__ x, T* __restrict__ out, int cols) {
  const T* row = x + (size_t)blockIdx.x * cols;
  T sum = T(0);
  for (int base = threadIdx.x; base < cols; base += blockDim.x * ITEMS) {
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      int c = base + k * blockDim.x;
      if (c < cols) sum += row[c];
    }
  }
  sum = blockReduceSum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// One kernel for the whole sum: the block that takes the last ticket adds what all of them left.
__device__ unsigned int finished = 0;

extern "C" __global__ void single_pass_sum(const float* x, unsigned int n, volatile float* partial, float* result) {
  extern __shared__ float sdata[];
  __shared__ bool last;
  unsigned int tid = threadIdx.x;
  float mine = 0.f;
  for (unsigned int i = blockIdx.x * blockDim.x + tid; i < n; i += gridDim.x * blockDim.x) mine += x[i];
  sdata[tid] = mine;
  __syncthreads();
  for (unsigned int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid == 0) {
    partial[blockIdx.x] = sdata[0];
    __threadfence();
    unsigned int ticket = atomicInc(&finished, gridDim.x);
    last = (ticket == gridDim.x - 1);
  }
  __syncthreads();
  if (last && tid == 0) {
    float sum = 0.f;
    for (int b = 0; b < gridDim.x; ++b) sum += partial[b];
    *result = sum;
    finished = 0;
  }
}

// Welford statistics in a struct, merged by shuffles; one warp per row.
struct Welford { float mean, m2, count; };

__device__ Welford merge(Welford a, Welford b) {
  float count = a.count + b.count;
  if (count == 0.f) return a;
  float delta = b.mean - a.mean;
  return {a.mean + delta * b.count / count, a.m2 + b.m2 + delta * delta * a.count * b.count / count, count};
}

extern "C" __global__ void __launch_bounds__(128)
layer_norm(const float* __restrict__ x, const float* __restrict__ gamma, float* __restrict__ y, int rows, int cols) {
  int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  Welford w = {0.f, 0.f, 0.f};
  for (int c = threadIdx.x; c < cols; c += 32) w = merge(w, Welford{x[row * cols + c], 0.f, 1.f});
  for (int offset = 16; offset > 0; offset >>= 1) {
    Welford o;
    o.mean = __shfl_down_sync(0xffffffff, w.mean, offset);
    o.m2 = __shfl_down_sync(0xffffffff, w.m2, offset);
    o.count = __shfl_down_sync(0xffffffff, w.count, offset);
    w = merge(w, o);
  }
  float mean = __shfl_sync(0xffffffff, w.mean, 0);
  float scale = rsqrtf(__shfl_sync(0xffffffff, w.m2, 0) / cols + 1e-5f);
  for (int c = threadIdx.x; c < cols; c += 32) y[row * cols + c] = (x[row * cols + c] - mean) * scale * gamma[c];
}

// Softmax of one row per block in dynamic workgroup memory.
extern "C" __global__ void softmax(const float* x, float* y, int cols) {
  extern __shared__ float red[];
  const float* in = x + (size_t)blockIdx.x * cols;
  float* out = y + (size_t)blockIdx.x * cols;
  float m = -INFINITY;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) m = fmaxf(m, in[c]);
  red[threadIdx.x] = m;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) red[threadIdx.x] = fmaxf(red[threadIdx.x], red[threadIdx.x + s]);
    __syncthreads();
  }
  m = red[0];
  __syncthreads();
  float sum = 0.f;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += __expf(in[c] - m);
  red[threadIdx.x] = sum;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) red[threadIdx.x] += red[threadIdx.x + s];
    __syncthreads();
  }
  sum = red[0];
  for (int c = threadIdx.x; c < cols; c += blockDim.x) out[c] = __expf(in[c] - m) / sum;
}
