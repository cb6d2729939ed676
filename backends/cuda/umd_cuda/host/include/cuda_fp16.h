// float16: the compiler's _Float16 (g++ 12, clang 15 or newer on x86-64; any on aarch64).
#pragma once

struct __half {
  _Float16 value;
  __half() = default;
  __half(float x) : value(_Float16(x)) {}
  __half(double x) : value(_Float16(x)) {}
  __half(int x) : value(_Float16(float(x))) {}
  __half(unsigned x) : value(_Float16(float(x))) {}
  __half(long long x) : value(_Float16(double(x))) {}
  operator float() const { return float(value); }
  uint16_t bits() const { return umd_bits<uint16_t>(value); }
  static __half from_bits(uint16_t bits) {
    __half h;
    h.value = umd_bits<_Float16>(bits);
    return h;
  }
};
using half = __half;
#include "umd_half.hpp"
UMD_SHORT_FLOAT(__half, __half2, __float2half, __half2float, __halves2half2)
using half2 = __half2;
namespace umd {
template <> struct Kind<__half> { static constexpr uint32_t value = 'h'; };
}
static inline __half __double2half(double x) { return __half(x); }
static inline __half __int2half_rn(int x) { return __half(x); }
static inline int __half2int_rn(__half x) { return __float2int_rn(x); }
static inline int __half2int_rz(__half x) { return __float2int_rz(x); }
static inline unsigned short __half_as_ushort(__half x) { return x.bits(); }
static inline __half __ushort_as_half(unsigned short x) { return __half::from_bits(x); }
static inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
static inline __half2 __half2half2(__half x) { return {x, x}; }
static inline __half2 make_half2(__half x, __half y) { return {x, y}; }
static inline float2 __half22float2(__half2 x) { return {float(x.x), float(x.y)}; }
static inline __half2 __float22half2_rn(float2 x) { return {__half(x.x), __half(x.y)}; }
static inline __half __low2half(__half2 x) { return x.x; }
static inline __half __high2half(__half2 x) { return x.y; }
static inline float __low2float(__half2 x) { return x.x; }
static inline float __high2float(__half2 x) { return x.y; }
