// CUDA's mathematical functions and intrinsics that <cmath> lacks. Fast variants are the exact ones here.
#pragma once

// Inline, unlike the C library's: a NaN gives way to a number.
static inline float umd_fmaxf(float a, float b) { return a != a ? b : a < b ? b : a; }
static inline float umd_fminf(float a, float b) { return a != a ? b : b < a ? b : a; }
#define fmaxf(...) umd_fmaxf(__VA_ARGS__)
#define fminf(...) umd_fminf(__VA_ARGS__)

#define UMD_MIN_MAX(T) \
  static inline T min(T a, T b) { return a < b ? a : b; } \
  static inline T max(T a, T b) { return a > b ? a : b; }
UMD_MIN_MAX(int)
UMD_MIN_MAX(unsigned)
UMD_MIN_MAX(long)
UMD_MIN_MAX(unsigned long)
UMD_MIN_MAX(long long)
UMD_MIN_MAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
template <class A, class B> using umd_mixed = typename std::enable_if<
    !std::is_same<A, B>::value && std::is_arithmetic<A>::value && std::is_arithmetic<B>::value,
    typename std::common_type<A, B>::type>::type;
template <class A, class B> static inline umd_mixed<A, B> min(A a, B b) {
  using C = umd_mixed<A, B>;
  return min(C(a), C(b));
}
template <class A, class B> static inline umd_mixed<A, B> max(A a, B b) {
  using C = umd_mixed<A, B>;
  return max(C(a), C(b));
}

static inline float umd_rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double umd_rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float umd_rsqrt(float x) { return umd_rsqrtf(x); }
static inline double umd_sinpi(double x) { return sin(remainder(x, 2.0) * 3.14159265358979323846); }
static inline double umd_cospi(double x) { return cos(remainder(x, 2.0) * 3.14159265358979323846); }
static inline float umd_sinpif(float x) { return float(umd_sinpi(double(x))); }
static inline float umd_cospif(float x) { return float(umd_cospi(double(x))); }
// Macros: glibc 2.41 and later have functions of these names.
#define rsqrtf(...) umd_rsqrtf(__VA_ARGS__)
#define rsqrt(...) umd_rsqrt(__VA_ARGS__)
#define sinpi(...) umd_sinpi(__VA_ARGS__)
#define cospi(...) umd_cospi(__VA_ARGS__)
#define sinpif(...) umd_sinpif(__VA_ARGS__)
#define cospif(...) umd_cospif(__VA_ARGS__)

static inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
static inline double rcbrt(double x) { return 1.0 / cbrt(x); }
static inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
static inline float fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

// Macros: glibc declares functions of these names and does not define them.
#define __expf(...) expf(__VA_ARGS__)
#define __exp10f(...) exp10f(__VA_ARGS__)
#define __logf(...) logf(__VA_ARGS__)
#define __log2f(...) log2f(__VA_ARGS__)
#define __log10f(...) log10f(__VA_ARGS__)
#define __sinf(...) sinf(__VA_ARGS__)
#define __cosf(...) cosf(__VA_ARGS__)
#define __tanf(...) tanf(__VA_ARGS__)
#define __powf(...) powf(__VA_ARGS__)
#define __sincosf(...) sincosf(__VA_ARGS__)
#define __fdividef(...) fdividef(__VA_ARGS__)
#define __frsqrt_rn(...) rsqrtf(__VA_ARGS__)
static inline float __frcp_rn(float x) { return 1.0f / x; }
#define __fsqrt_rn(...) sqrtf(__VA_ARGS__)
#define __dsqrt_rn(...) sqrt(__VA_ARGS__)
#define __fmaf_rn(...) fmaf(__VA_ARGS__)
#define __fma_rn(...) fma(__VA_ARGS__)
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }

template <class To, class From> static inline To umd_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline int __float_as_int(float x) { return umd_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return umd_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return umd_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return umd_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return umd_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return umd_bits<double>(x); }
static inline int __double2hiint(double x) { return int(umd_bits<uint64_t>(x) >> 32); }
static inline int __double2loint(double x) { return int(umd_bits<uint64_t>(x)); }

// Conversions saturate and turn NaN into 0, as the hardware does.
template <class To, class From> static inline To umd_convert(From x) {
  if (x != x) return 0;
  if (x <= From(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  if (x >= From(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  return To(x);
}
#define UMD_CONVERT(FROM, PREFIX, TO, SUFFIX) \
  static inline TO PREFIX##2##SUFFIX##_rn(FROM x) { return umd_convert<TO>(FROM(rint(x))); } \
  static inline TO PREFIX##2##SUFFIX##_rz(FROM x) { return umd_convert<TO>(FROM(trunc(x))); } \
  static inline TO PREFIX##2##SUFFIX##_rd(FROM x) { return umd_convert<TO>(FROM(floor(x))); } \
  static inline TO PREFIX##2##SUFFIX##_ru(FROM x) { return umd_convert<TO>(FROM(ceil(x))); }
UMD_CONVERT(float, __float, int, int)
UMD_CONVERT(float, __float, unsigned, uint)
UMD_CONVERT(float, __float, long long, ll)
UMD_CONVERT(double, __double, int, int)
UMD_CONVERT(double, __double, unsigned, uint)
UMD_CONVERT(double, __double, long long, ll)
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }
static inline float __ll2float_rn(long long x) { return float(x); }
static inline double __int2double_rn(int x) { return double(x); }
static inline float __double2float_rn(double x) { return float(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
static inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r = r << 1 | (x >> i & 1u);
  return r;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  uint64_t both = uint64_t(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= unsigned(both >> 8 * (selector >> 4 * i & 7u) & 0xffu) << 8 * i;
  return result;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) << (shift & 31u) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31u));
}
static inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
static inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
static inline unsigned __sad(int a, int b, unsigned c) { return c + unsigned(a > b ? a - b : b - a); }
static inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += int(int8_t(a >> 8 * i)) * int(int8_t(b >> 8 * i));
  return c;
}

template <class T> static inline T __ldg(const T* address) { return *address; }
template <class T> static inline T __ldcg(const T* address) { return *address; }
template <class T> static inline T __ldcs(const T* address) { return *address; }
template <class T> static inline T __ldca(const T* address) { return *address; }
template <class T> static inline void __stcg(T* address, T value) { *address = value; }
template <class T> static inline void __stcs(T* address, T value) { *address = value; }
static inline long long clock64() { return 0; }
static inline void __nanosleep(unsigned) {}
