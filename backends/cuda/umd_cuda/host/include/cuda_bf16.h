// bfloat16: the upper half of a float32, rounded to nearest even.
#pragma once

struct __nv_bfloat16 {
  uint16_t upper;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) {
    uint32_t u = umd_bits<uint32_t>(x);
    upper = (u & 0x7fffffffu) > 0x7f800000u ? uint16_t(0x7fff) : uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
  __nv_bfloat16(double x) : __nv_bfloat16(float(x)) {}
  __nv_bfloat16(int x) : __nv_bfloat16(float(x)) {}
  __nv_bfloat16(unsigned x) : __nv_bfloat16(float(x)) {}
  operator float() const { return umd_bits<float>(uint32_t(upper) << 16); }
  uint16_t bits() const { return upper; }
  static __nv_bfloat16 from_bits(uint16_t bits) {
    __nv_bfloat16 b;
    b.upper = bits;
    return b;
  }
};
#include "umd_half.hpp"
UMD_SHORT_FLOAT(__nv_bfloat16, __nv_bfloat162, __float2bfloat16, __bfloat162float, __halves2bfloat162)
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
namespace umd {
template <> struct Kind<__nv_bfloat16> { static constexpr uint32_t value = 'g'; };
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits(); }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16::from_bits(x); }
static inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
static inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {__nv_bfloat16(x), __nv_bfloat16(x)}; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {float(x.x), float(x.y)}; }
static inline float __low2float(__nv_bfloat162 x) { return x.x; }
static inline float __high2float(__nv_bfloat162 x) { return x.y; }
