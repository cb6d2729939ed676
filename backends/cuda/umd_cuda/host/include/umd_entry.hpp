// One entry per kernel: finds the parameters' types, and runs the kernel as a loop or on fibers.
#pragma once

#ifndef UMD_INDEPENDENT  // a source with atomics defines it empty
#if defined(__clang__)
#define UMD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define UMD_INDEPENDENT _Pragma("GCC ivdep")
#endif
#endif

namespace umd {
struct Parameter {  // read from Python: keep in step with module.py
  uint32_t kind, size, alignment, element, element_size, constant;
};

template <class T> struct Kind {
  static constexpr uint32_t value = std::is_same<T, bool>::value        ? 'b'
                                    : std::is_floating_point<T>::value   ? 'f'
                                    : std::is_pointer<T>::value          ? 'p'
                                    : std::is_enum<T>::value             ? 'i'
                                    : !std::is_integral<T>::value        ? 's'
                                    : std::is_signed<T>::value           ? 'i'
                                                                         : 'u';
};
template <> struct Kind<void> { static constexpr uint32_t value = 'v'; };
template <class T> struct Size { static constexpr uint32_t value = sizeof(T); };
template <> struct Size<void> { static constexpr uint32_t value = 0; };

template <class T> constexpr Parameter describe() {
  using P = typename std::remove_pointer<T>::type;
  using Plain = typename std::remove_cv<P>::type;
  using S = typename Scalar<Plain>::type;
  return std::is_pointer<T>::value
             ? Parameter{'p', sizeof(T), alignof(T), Kind<S>::value, Size<S>::value, std::is_const<P>::value}
             : Parameter{Kind<T>::value, sizeof(T), alignof(T), 0, 0, 0};
}

using Body = void (*)(void** arguments);
struct Coordinates { unsigned thread[3], block[3], block_size[3], block_count[3]; };
}  // namespace umd

extern "C" {
int umd_rt_run(umd::Body body, umd::Coordinates* at, unsigned shared_size, void** arguments, uint64_t seed);
void umd_rt_begin_loop();
int umd_rt_end_loop();
}

namespace umd {
static Coordinates at;

static inline void place() {
  threadIdx.x = at.thread[0], threadIdx.y = at.thread[1], threadIdx.z = at.thread[2];
  blockIdx.x = at.block[0], blockIdx.y = at.block[1], blockIdx.z = at.block[2];
}

template <auto F, class = decltype(F)> struct Entry;
template <auto F, class... A> struct Entry<F, void (*)(A...)> {
  static constexpr uint32_t count = sizeof...(A);
  static constexpr Parameter parameters[] = {describe<A>()..., Parameter{}};

  template <size_t... I> __attribute__((always_inline, no_sanitize("thread")))
  static inline void call(void** arguments, std::index_sequence<I...>) {
    F(*static_cast<A*>(arguments[I])...);
  }
  __attribute__((no_sanitize("thread"))) static void body(void** arguments) {
    place();
    call(arguments, std::index_sequence_for<A...>{});
  }

  static inline void loop(dim3 grid, dim3 block, A... values) {
    for (unsigned bz = 0; bz < grid.z; ++bz)
      for (unsigned by = 0; by < grid.y; ++by)
        for (unsigned bx = 0; bx < grid.x; ++bx) {
          blockIdx.x = bx, blockIdx.y = by, blockIdx.z = bz;
          for (unsigned tz = 0; tz < block.z; ++tz)
            for (unsigned ty = 0; ty < block.y; ++ty) {
              threadIdx.y = ty, threadIdx.z = tz;
              UMD_INDEPENDENT  // threads that do not synchronise may not depend on each other
              for (unsigned tx = 0; tx < block.x; ++tx) {
                threadIdx.x = tx;
                F(values...);
              }
            }
        }
  }
  template <size_t... I> static inline void spread(dim3 g, dim3 b, void** arguments, std::index_sequence<I...>) {
    loop(g, b, *static_cast<A*>(arguments[I])...);
  }

  template <bool Fibers> static int run(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                        unsigned shared_size, void** arguments, uint64_t seed) {
    gridDim.x = gx, gridDim.y = gy, gridDim.z = gz;
    blockDim.x = bx, blockDim.y = by, blockDim.z = bz;
    if constexpr (Fibers) {
      at = Coordinates{{0, 0, 0}, {0, 0, 0}, {bx, by, bz}, {gx, gy, gz}};
      return umd_rt_run(&body, &at, shared_size, arguments, seed);
    } else {
      umd_rt_begin_loop();
      if (gx * gy * gz * bx * by * bz == 1)  // constants: a grid-stride loop of the kernel becomes the vector loop
        gridDim = blockDim = dim3(), spread(dim3(), dim3(), arguments, std::index_sequence_for<A...>{});
      else
        spread(dim3(gx, gy, gz), dim3(bx, by, bz), arguments, std::index_sequence_for<A...>{});
      return umd_rt_end_loop();
    }
  }
};

struct Kernel {  // read from Python: keep in step with module.py
  const char* name;
  int (*run)(unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void**, uint64_t);
  const Parameter* parameters;
  uint32_t parameter_count, fibers;
};
struct Variable { const char* name; void* address; size_t size; };
}  // namespace umd

#define UMD_KERNEL(NAME, FIBERS, ...) \
  umd::Kernel{NAME, &umd::Entry<&__VA_ARGS__>::template run<FIBERS>, umd::Entry<&__VA_ARGS__>::parameters, \
              umd::Entry<&__VA_ARGS__>::count, FIBERS},
#define UMD_EXPORT extern "C" __attribute__((visibility("default"), used)) const
