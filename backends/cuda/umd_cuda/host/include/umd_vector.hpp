// dim3, uint3 and the vector types, with CUDA's sizes and alignments.
#pragma once

#define UMD_VECTOR(T, N, ALIGN2, ALIGN4) \
  struct N##1 { T x; }; \
  struct alignas(ALIGN2) N##2 { T x, y; }; \
  struct N##3 { T x, y, z; }; \
  struct alignas(ALIGN4) N##4 { T x, y, z, w; }; \
  static inline N##1 make_##N##1(T x) { return {x}; } \
  static inline N##2 make_##N##2(T x, T y) { return {x, y}; } \
  static inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; } \
  static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }

UMD_VECTOR(signed char, char, 2, 4)
UMD_VECTOR(unsigned char, uchar, 2, 4)
UMD_VECTOR(short, short, 4, 8)
UMD_VECTOR(unsigned short, ushort, 4, 8)
UMD_VECTOR(int, int, 8, 16)
UMD_VECTOR(unsigned int, uint, 8, 16)
UMD_VECTOR(long, long, 16, 16)
UMD_VECTOR(unsigned long, ulong, 16, 16)
UMD_VECTOR(long long, longlong, 16, 16)
UMD_VECTOR(unsigned long long, ulonglong, 16, 16)
UMD_VECTOR(float, float, 8, 16)
UMD_VECTOR(double, double, 16, 16)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return uint3{x, y, z}; }
};

namespace umd {
// The scalar type that an array of T holds, for matching NumPy's dtype: float for float4.
template <class T> struct Scalar { using type = T; };
#define UMD_SCALAR(T, N) \
  template <> struct Scalar<N##1> { using type = T; }; \
  template <> struct Scalar<N##2> { using type = T; }; \
  template <> struct Scalar<N##3> { using type = T; }; \
  template <> struct Scalar<N##4> { using type = T; };
UMD_SCALAR(signed char, char)
UMD_SCALAR(unsigned char, uchar)
UMD_SCALAR(short, short)
UMD_SCALAR(unsigned short, ushort)
UMD_SCALAR(int, int)
UMD_SCALAR(unsigned int, uint)
UMD_SCALAR(long, long)
UMD_SCALAR(unsigned long, ulong)
UMD_SCALAR(long long, longlong)
UMD_SCALAR(unsigned long long, ulonglong)
UMD_SCALAR(float, float)
UMD_SCALAR(double, double)
}  // namespace umd
