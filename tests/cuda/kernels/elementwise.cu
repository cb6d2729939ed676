// Elementwise kernels in the style of CuPy's documentation: extern "C" blocks, templates, structs by value.
#include <cuda_runtime.h>

extern "C" {

__global__ void my_add(const float* x1, const float* x2, float* y) {
  int tid = blockDim.x * blockIdx.x + threadIdx.x;
  y[tid] = x1[tid] + x2[tid];
}

__global__ void test_sum(const float* x1, const float* x2, float* y, unsigned int N) {
  unsigned int tid = blockDim.x * blockIdx.x + threadIdx.x;
  if (tid < N) {
    y[tid] = x1[tid] + x2[tid];
  }
}

__global__ void saxpy(int n, float a, const float* __restrict__ x, float* __restrict__ y) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
    y[i] = a * x[i] + y[i];
  }
}

}  // extern "C"

template <typename T>
__global__ void fx3(T* arr, int N) {
  unsigned int tid = blockIdx.x * blockDim.x + threadIdx.x;
  if (tid < N) {
    arr[tid] = arr[tid] * 3;
  }
}

// A struct by value, with a vector of every component type.
struct Camera {
  double focal;
  float3 center;
  int2 size;
  bool flip;
};

extern "C" __global__ void project(const float3* __restrict__ points, float2* __restrict__ pixels, Camera camera, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float3 p = points[i];
  float u = (float)camera.focal * (p.x - camera.center.x) / p.z + camera.size.x * 0.5f;
  float v = (float)camera.focal * (p.y - camera.center.y) / p.z + camera.size.y * 0.5f;
  pixels[i] = make_float2(u, camera.flip ? camera.size.y - v : v);
}

// Filter taps in constant memory; the host writes them through the module's global.
__constant__ float taps[5];

extern "C" __global__ void filter5(const float* x, float* y, int n) {
  __shared__ float tile[128 + 4];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x + 2] = i < n ? x[i] : 0.f;
  if (threadIdx.x < 2) {
    tile[threadIdx.x] = i >= 2 ? x[i - 2] : 0.f;
    int right = i + blockDim.x;
    tile[threadIdx.x + blockDim.x + 2] = right < n ? x[right] : 0.f;
  }
  __syncthreads();
  if (i < n) {
    float sum = 0.f;
#pragma unroll
    for (int k = 0; k < 5; ++k) sum += taps[k] * tile[threadIdx.x + k];
    y[i] = sum;
  }
}
