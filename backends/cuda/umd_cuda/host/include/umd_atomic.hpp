// Atomics. One operating-system thread runs a launch, so an ordinary read and write is atomic; the empty asm keeps the
// compiler from merging or vectorising neighbours.
#pragma once

extern "C" void umd_rt_atomic(void* address, unsigned size, void* caller);

namespace umd {
template <class T> struct Same { using type = T; };
template <class T> using same = typename Same<T>::type;

template <class T, class F> UMD_UNCHECKED_ACCESS T atomic(T* address, F update) {
#ifdef UMD_CHECKED
  umd_rt_atomic((void*)address, sizeof(T), __builtin_return_address(0));
#endif
  __asm__ volatile("" ::: "memory");
  T before = *address;
  *address = update(before);
  __asm__ volatile("" ::: "memory");
  return before;
}
}  // namespace umd

#define UMD_ATOMIC(NAME, RESULT) \
  template <class T> __attribute__((always_inline)) inline T NAME(T* address, umd::same<T> value) { \
    return umd::atomic(address, [=](T old) __attribute__((no_sanitize("thread"))) { return T(RESULT); }); \
  } \
  template <class T> __attribute__((always_inline)) inline T NAME##_block(T* address, umd::same<T> value) { \
    return NAME(address, value); \
  } \
  template <class T> __attribute__((always_inline)) inline T NAME##_system(T* address, umd::same<T> value) { \
    return NAME(address, value); \
  }
UMD_ATOMIC(atomicAdd, old + value)
UMD_ATOMIC(atomicSub, old - value)
UMD_ATOMIC(atomicMax, old > value ? old : value)
UMD_ATOMIC(atomicMin, old < value ? old : value)
UMD_ATOMIC(atomicExch, value)
UMD_ATOMIC(atomicAnd, old & value)
UMD_ATOMIC(atomicOr, old | value)
UMD_ATOMIC(atomicXor, old ^ value)
UMD_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
UMD_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef UMD_ATOMIC
template <class T>
__attribute__((always_inline)) inline T atomicCAS(T* address, umd::same<T> expected, umd::same<T> value) {
  return umd::atomic(address, [=](T old) __attribute__((no_sanitize("thread"))) {
    return memcmp(&old, &expected, sizeof(T)) == 0 ? value : old;
  });
}
