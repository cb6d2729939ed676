// Atomics, scans, sorting and warp votes.
extern "C" {

__global__ void histogram(const unsigned char* __restrict__ pixels, unsigned int* __restrict__ bins, int n) {
  __shared__ unsigned int local[256];
  for (int b = threadIdx.x; b < 256; b += blockDim.x) local[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) atomicAdd(&local[pixels[i]], 1);
  __syncthreads();
  for (int b = threadIdx.x; b < 256; b += blockDim.x)
    if (local[b]) atomicAdd(&bins[b], local[b]);
}

// The programming guide's way to add doubles where the hardware has no such instruction.
__device__ double atomicAddCas(double* address, double val) {
  unsigned long long int* address_as_ull = (unsigned long long int*)address;
  unsigned long long int old = *address_as_ull, assumed;
  do {
    assumed = old;
    old = atomicCAS(address_as_ull, assumed, __double_as_longlong(val + __longlong_as_double(assumed)));
  } while (assumed != old);
  return __longlong_as_double(old);
}

__global__ void segment_sum(const double* values, const int* segment, double* sums, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAddCas(&sums[segment[i]], values[i]);
}

// Kogge-Stone inside a block, two buffers.
__global__ void inclusive_scan(const int* in, int* out, int n) {
  extern __shared__ __align__(8) int temp[];
  int t = threadIdx.x, pout = 0, pin = 1;
  temp[t] = t < n ? in[t] : 0;
  __syncthreads();
  for (int offset = 1; offset < blockDim.x; offset *= 2) {
    pout = 1 - pout;
    pin = 1 - pout;
    if (t >= offset) temp[pout * blockDim.x + t] = temp[pin * blockDim.x + t] + temp[pin * blockDim.x + t - offset];
    else temp[pout * blockDim.x + t] = temp[pin * blockDim.x + t];
    __syncthreads();
  }
  if (t < n) out[t] = temp[pout * blockDim.x + t];
}

__global__ void bitonic_sort(float* keys) {
  __shared__ float s[256];
  unsigned int t = threadIdx.x;
  s[t] = keys[blockIdx.x * 256 + t];
  __syncthreads();
  for (unsigned int k = 2; k <= 256; k *= 2) {
    for (unsigned int j = k / 2; j > 0; j /= 2) {
      unsigned int ixj = t ^ j;
      if (ixj > t) {
        bool up = (t & k) == 0;
        if ((s[t] > s[ixj]) == up) {
          float swap = s[t];
          s[t] = s[ixj];
          s[ixj] = swap;
        }
      }
      __syncthreads();
    }
  }
  keys[blockIdx.x * 256 + t] = s[t];
}

// Keep what is positive: one atomic per warp, the place by population count.
__global__ void compact(const int* in, int* out, int* count, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  bool keep = i < n && in[i] > 0;
  unsigned int ballot = __ballot_sync(0xffffffff, keep);
  int lane = threadIdx.x & 31, base = 0;
  if (lane == 0 && ballot) base = atomicAdd(count, __popc(ballot));
  base = __shfl_sync(0xffffffff, base, 0);
  if (keep) out[base + __popc(ballot & ((1u << lane) - 1))] = in[i];
}

// The same by groups that happen to be together.
__device__ int atomicAggInc(int* ctr) {
  unsigned int active = __activemask();
  int leader = __ffs(active) - 1;
  int change = __popc(active);
  unsigned int rank = __popc(active & ((1u << (threadIdx.x & 31)) - 1));
  int warp_res;
  if (rank == 0) warp_res = atomicAdd(ctr, change);
  warp_res = __shfl_sync(active, warp_res, leader);
  return warp_res + rank;
}

__global__ void filter_k(int* dst, int* nres, const int* src, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i >= n) return;
  if (src[i] > 0) dst[atomicAggInc(nres)] = src[i];
}

}
