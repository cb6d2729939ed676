// What a kernel source sees before its first line when it is compiled for a CPU.
//
// The source stays ordinary C++ at namespace scope. threadIdx and its sisters are variables of the translation unit:
// nobody takes their address, so in loop mode the compiler keeps them in registers and vectorises over threadIdx.x.
// In fiber mode every operation that may switch to another thread restores threadIdx when it returns.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#define __UMD_HOST__ 1
#define __CUDACC__ 1
#define __CUDA_ARCH__ 800
#ifdef UMD_CHECKED
#define UMD_UNCHECKED_ACCESS __attribute__((noinline, no_sanitize("thread")))
// flatten: the compiler instruments no copy of a struct that is passed by value, so device functions are inlined
#define __global__ __attribute__((noinline, flatten))
#else
#define UMD_UNCHECKED_ACCESS __attribute__((always_inline)) inline
#define __global__ __attribute__((always_inline)) inline
#endif
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __inline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __restrict__ __restrict
#define UMD_LINE __LINE__

#include "umd_vector.hpp"

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

#include "umd_sync.hpp"
#include "umd_atomic.hpp"
#include "umd_math.hpp"
#include "umd_entry.hpp"
