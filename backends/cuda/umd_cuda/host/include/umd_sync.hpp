// Barriers, warp operations and workgroup memory. The runtime (runtime.cpp) switches between fibers.
#pragma once

extern "C" {
void umd_rt_barrier(int line);
int umd_rt_barrier_reduce(int predicate, int operation, int line);
// Waits for the lanes of `mask`; returns the 32 values that they brought.
const uint64_t* umd_rt_exchange(unsigned mask, uint64_t value, int line);
void umd_rt_check_source(unsigned mask, int source, int line);
void umd_rt_fence();
void umd_rt_trap(int line);
unsigned umd_rt_active(int line);
void umd_rt_shared(void* address, size_t size, const char* name);
// Dynamic workgroup memory stands between two zones that nobody may touch.
extern char umd_rt_room[] __attribute__((aligned(128), visibility("hidden")));
}

#define umd_rt_dynamic (umd_rt_room + 65536)

namespace umd {
[[maybe_unused]] static int line;  // where the running operation stands in the source; set by the macros below

static inline unsigned lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31u; }

static inline void barrier() {
  uint3 self = threadIdx;
  umd_rt_barrier(line);
  threadIdx = self;
}

static inline int barrier_reduce(int predicate, int operation) {
  uint3 self = threadIdx;
  int result = umd_rt_barrier_reduce(predicate, operation, line);
  threadIdx = self;
  return result;
}

static inline const uint64_t* exchange(unsigned mask, uint64_t value) {
  uint3 self = threadIdx;
  const uint64_t* values = umd_rt_exchange(mask, value, line);
  threadIdx = self;
  return values;
}

template <class T> UMD_UNCHECKED_ACCESS T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  [[maybe_unused]] int site = line;
  bits = exchange(mask, bits)[source];
#ifdef UMD_CHECKED
  umd_rt_check_source(mask, source, site);
#endif
  memcpy(&value, &bits, sizeof(T));
  return value;
}

#ifdef UMD_CHECKED
// One workgroup variable between two wide zones that nobody may touch: an index that runs out of it is found.
template <class T> struct Shared {
  static constexpr size_t zone = 65536;
  alignas(128) char before[zone];
  alignas(128) T value;
  char after[zone];
};
struct SharedName {
  __attribute__((no_sanitize("thread"))) SharedName(void* address, size_t size, const char* name) {
    umd_rt_shared(address, size, name);
  }
};
#endif
}  // namespace umd

static inline void __syncthreads() { umd::barrier(); }
static inline int __syncthreads_or(int predicate) { return umd::barrier_reduce(predicate, 0); }
static inline int __syncthreads_and(int predicate) { return umd::barrier_reduce(predicate, 1); }
static inline int __syncthreads_count(int predicate) { return umd::barrier_reduce(predicate, 2); }
static inline void __threadfence() { umd_rt_fence(); }
static inline void __threadfence_block() { umd_rt_fence(); }
static inline void __threadfence_system() { umd_rt_fence(); }
static inline void __trap() { umd_rt_trap(umd::line); }
static inline unsigned __activemask() {
  uint3 self = threadIdx;
  unsigned lanes = umd_rt_active(umd::line);
  threadIdx = self;
  return lanes;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu) { umd::exchange(mask, 0); }

template <class T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return umd::shuffle(mask, value, (umd::lane() & ~(width - 1u)) | (source & (width - 1)));
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned self = umd::lane();
  return umd::shuffle(mask, value, (self & (width - 1u)) + delta >= unsigned(width) ? self : self + delta);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned self = umd::lane();
  return umd::shuffle(mask, value, (self & (width - 1u)) < delta ? self : self - delta);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  unsigned self = umd::lane(), source = self ^ unsigned(lanes);
  return umd::shuffle(mask, value, source / width > self / width ? self : source);
}
UMD_UNCHECKED_ACCESS unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint64_t* values = umd::exchange(mask, predicate != 0);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (mask >> i & 1u) && values[i] ? 1u << i : 0u;
  return result;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <class T> UMD_UNCHECKED_ACCESS unsigned __match_any_sync(unsigned mask, T value) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  const uint64_t* values = umd::exchange(mask, bits);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (mask >> i & 1u) && values[i] == bits ? 1u << i : 0u;
  return result;
}
template <class T, class F> UMD_UNCHECKED_ACCESS T umd_reduce(unsigned mask, T value, F combine) {
  uint64_t bits = uint64_t(value);
  const uint64_t* values = umd::exchange(mask, bits);
  bool first = true;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1u) value = first ? T(values[i]) : combine(value, T(values[i])), first = false;
  return value;
}
template <class T> static inline T __reduce_add_sync(unsigned mask, T value) {
  return umd_reduce(mask, value, [](T a, T b) { return T(a + b); });
}
template <class T> static inline T __reduce_max_sync(unsigned mask, T value) {
  return umd_reduce(mask, value, [](T a, T b) { return a > b ? a : b; });
}
template <class T> static inline T __reduce_min_sync(unsigned mask, T value) {
  return umd_reduce(mask, value, [](T a, T b) { return a < b ? a : b; });
}

#define UMD_AT(...) (umd::line = UMD_LINE, __VA_ARGS__)
#define __trap() UMD_AT(__trap())
#define __activemask() UMD_AT(__activemask())
#ifdef UMD_CHECKED
#define __syncthreads() UMD_AT(__syncthreads())
#define __syncthreads_or(...) UMD_AT(__syncthreads_or(__VA_ARGS__))
#define __syncthreads_and(...) UMD_AT(__syncthreads_and(__VA_ARGS__))
#define __syncthreads_count(...) UMD_AT(__syncthreads_count(__VA_ARGS__))
#define __syncwarp(...) UMD_AT(__syncwarp(__VA_ARGS__))
#define __shfl_sync(...) UMD_AT(__shfl_sync(__VA_ARGS__))
#define __shfl_down_sync(...) UMD_AT(__shfl_down_sync(__VA_ARGS__))
#define __shfl_up_sync(...) UMD_AT(__shfl_up_sync(__VA_ARGS__))
#define __shfl_xor_sync(...) UMD_AT(__shfl_xor_sync(__VA_ARGS__))
#define __ballot_sync(...) UMD_AT(__ballot_sync(__VA_ARGS__))
#define __any_sync(...) UMD_AT(__any_sync(__VA_ARGS__))
#define __all_sync(...) UMD_AT(__all_sync(__VA_ARGS__))
#endif
