// What the scheduler (runtime.cpp) and the checker (checks.cpp) share.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace umd {
constexpr unsigned max_threads = 1024, warp_lanes = 32, max_warps = max_threads / warp_lanes;
constexpr unsigned active_lanes = 0;  // as a mask: whoever is here
constexpr size_t stack_size = 128 * 1024, dynamic_size = 228 * 1024, dynamic_zone = 64 * 1024;

struct Coordinates { unsigned thread[3], block[3], block_size[3], block_count[3]; };
using Body = void (*)(void** arguments);

enum class State : uint8_t { ready, barrier, exchange, done };
struct Thread {
  void* context;  // stack pointer while it waits; null before its first step
  void* stack;
  uint64_t value;
  unsigned mask;
  int line, predicate;
  State state;
  bool killed;
};

struct Group {  // the running workgroup
  Thread threads[max_threads];
  unsigned order[max_threads];  // threads in the order in which they run
  unsigned count, current, position, end;
  unsigned serial;              // number of the workgroup, unique over all launches
  unsigned block;               // linear index in the grid
  uint32_t barriers, exchanges[max_warps];
  bool running;                 // kernel code is what runs: its memory accesses are checked
  alignas(64) uint64_t values[max_threads];
};
extern Group group;

// Kinds of findings; checking.py names them in the same order.
enum Kind : int32_t {
  out_of_bounds_read, out_of_bounds_write, race_write_write, race_read_write, uninitialised_read, divergent_barrier,
  bad_mask, divergent_warp, inactive_source, trap,
};

void stop_thread();  // ends the running thread before what it was about to do
#ifdef UMD_CHECKED
void checks_begin_launch(unsigned shared_size);
void checks_begin_group();
void found(Kind kind, unsigned thread, int line, unsigned other_thread, int other_line);
#endif
}  // namespace umd
