// The operators and functions that __half and __nv_bfloat16 share: computed in float32, rounded once.
#pragma once

#define UMD_SHORT_FLOAT(T, PAIR, TO, FROM, TO_PAIR) \
  static inline T TO(float x) { return T(x); } \
  static inline T TO##_rn(float x) { return T(x); } \
  static inline float FROM(T x) { return float(x); } \
  static inline T operator+(T a, T b) { return T(float(a) + float(b)); } \
  static inline T operator-(T a, T b) { return T(float(a) - float(b)); } \
  static inline T operator*(T a, T b) { return T(float(a) * float(b)); } \
  static inline T operator/(T a, T b) { return T(float(a) / float(b)); } \
  static inline T operator-(T a) { return T::from_bits(uint16_t(a.bits() ^ 0x8000u)); } \
  static inline T& operator+=(T& a, T b) { return a = a + b; } \
  static inline T& operator-=(T& a, T b) { return a = a - b; } \
  static inline T& operator*=(T& a, T b) { return a = a * b; } \
  static inline T& operator/=(T& a, T b) { return a = a / b; } \
  static inline bool operator==(T a, T b) { return float(a) == float(b); } \
  static inline bool operator!=(T a, T b) { return float(a) != float(b); } \
  static inline bool operator<(T a, T b) { return float(a) < float(b); } \
  static inline bool operator<=(T a, T b) { return float(a) <= float(b); } \
  static inline bool operator>(T a, T b) { return float(a) > float(b); } \
  static inline bool operator>=(T a, T b) { return float(a) >= float(b); } \
  static inline T __hadd(T a, T b) { return a + b; } \
  static inline T __hsub(T a, T b) { return a - b; } \
  static inline T __hmul(T a, T b) { return a * b; } \
  static inline T __hdiv(T a, T b) { return a / b; } \
  static inline T __hneg(T a) { return -a; } \
  static inline T __habs(T a) { return T::from_bits(uint16_t(a.bits() & 0x7fffu)); } \
  static inline T __hfma(T a, T b, T c) { return T(float(double(float(a)) * float(b) + float(c))); } \
  static inline bool __heq(T a, T b) { return a == b; } \
  static inline bool __hne(T a, T b) { return a != b; } \
  static inline bool __hlt(T a, T b) { return a < b; } \
  static inline bool __hle(T a, T b) { return a <= b; } \
  static inline bool __hgt(T a, T b) { return a > b; } \
  static inline bool __hge(T a, T b) { return a >= b; } \
  static inline bool __hisnan(T a) { return a != a; } \
  static inline T __hmax(T a, T b) { return T(fmaxf(a, b)); } \
  static inline T __hmin(T a, T b) { return T(fminf(a, b)); } \
  static inline T hexp(T a) { return T(expf(a)); } \
  static inline T hlog(T a) { return T(logf(a)); } \
  static inline T hsqrt(T a) { return T(sqrtf(a)); } \
  static inline T hrsqrt(T a) { return T(rsqrtf(a)); } \
  static inline T hrcp(T a) { return T(1.0f / float(a)); } \
  static inline T hsin(T a) { return T(sinf(a)); } \
  static inline T hcos(T a) { return T(cosf(a)); } \
  static inline T htanh(T a) { return T(tanhf(a)); } \
  static inline T __ldg(const T* p) { return *p; } \
  struct alignas(4) PAIR { \
    T x, y; \
    PAIR() = default; \
    PAIR(T a, T b) : x(a), y(b) {} \
  }; \
  static inline PAIR operator+(PAIR a, PAIR b) { return {a.x + b.x, a.y + b.y}; } \
  static inline PAIR operator-(PAIR a, PAIR b) { return {a.x - b.x, a.y - b.y}; } \
  static inline PAIR operator*(PAIR a, PAIR b) { return {a.x * b.x, a.y * b.y}; } \
  static inline PAIR operator/(PAIR a, PAIR b) { return {a.x / b.x, a.y / b.y}; } \
  static inline PAIR __hadd2(PAIR a, PAIR b) { return a + b; } \
  static inline PAIR __hsub2(PAIR a, PAIR b) { return a - b; } \
  static inline PAIR __hmul2(PAIR a, PAIR b) { return a * b; } \
  static inline PAIR __h2div(PAIR a, PAIR b) { return a / b; } \
  static inline PAIR __hneg2(PAIR a) { return {-a.x, -a.y}; } \
  static inline PAIR __hfma2(PAIR a, PAIR b, PAIR c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  static inline PAIR __hmax2(PAIR a, PAIR b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; } \
  static inline PAIR __hmin2(PAIR a, PAIR b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; } \
  static inline PAIR h2exp(PAIR a) { return {hexp(a.x), hexp(a.y)}; } \
  static inline PAIR TO_PAIR(T a, T b) { return {a, b}; } \
  static inline T atomicAdd(T* p, T v) { \
    return umd::atomic(p, [=](T old) __attribute__((no_sanitize("thread"))) { return old + v; }); \
  } \
  namespace umd { \
  template <> struct Scalar<PAIR> { using type = T; }; \
  }
