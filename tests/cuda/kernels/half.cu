// float16 and bfloat16, alone and in pairs.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void haxpy(int n, half a, const half* x, half* y) {
  int start = threadIdx.x + blockDim.x * blockIdx.x;
  int stride = blockDim.x * gridDim.x;
  int n2 = n / 2;
  const half2* x2 = (const half2*)x;
  half2* y2 = (half2*)y;
  for (int i = start; i < n2; i += stride) y2[i] = __hfma2(__half2half2(a), x2[i], y2[i]);
  if (start == 0 && (n % 2)) y[n - 1] = __hfma(a, x[n - 1], y[n - 1]);
}

template <typename T>
__device__ __forceinline__ float to_float(T v) { return static_cast<float>(v); }

template <typename T>
__device__ __forceinline__ T gelu(T v) {
  float x = to_float(v);
  return static_cast<T>(0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))));
}

extern "C" __launch_bounds__(256) __global__ void gelu_bf16(const __nv_bfloat16* __restrict__ in,
                                                            __nv_bfloat16* __restrict__ out, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = gelu(in[i]);
}
