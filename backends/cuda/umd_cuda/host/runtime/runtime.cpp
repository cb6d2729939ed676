// Runs one workgroup after the other; the threads of a workgroup are fibers on one operating-system thread.
//
// A warp runs until each of its threads waits at a barrier or has ended; warp operations are resolved inside that pass.
// With a seed other than 0 the order of workgroups, warps and threads is drawn by chance.
#include "runtime.hpp"
#include "switch.hpp"

#include <stdio.h>
#include <string.h>
#include <utility>
#include <vector>

namespace umd {
Group group;
static char* stacks;            // lent by the process: all modules share it
static void* scheduler;         // context of run_warp
static void* free_stacks[max_threads];
static unsigned free_count;
static Body body;
static void** arguments;
static Coordinates* at;
static unsigned reduced, arrived;  // at the last barrier
static bool in_loop, failed;
static char message[256];
static uint64_t random_state;

static unsigned random_below(unsigned n) {  // xorshift64
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return unsigned((random_state >> 32) * n >> 32);
}

static void shuffle(unsigned* values, unsigned count) {
  for (unsigned i = count; i > 1; --i) std::swap(values[i - 1], values[random_below(i)]);
}

static void fail(const char* text, unsigned thread, int line) {
  if (!failed) snprintf(message, sizeof message, "%s (block %u, thread %u, line %d)", text, group.block, thread, line);
  failed = true;
}

static void misuse(int kind, const char* text, unsigned thread, int line, unsigned other, int other_line) {
#ifdef UMD_CHECKED
  found(Kind(kind), thread, line, other, other_line);
#else
  (void)kind, (void)other, (void)other_line;
#endif
  fail(text, thread, line);
}

static int next_ready() {
  while (++group.position < group.end) {
    unsigned candidate = group.order[group.position];
    if (group.threads[candidate].state == State::ready) return int(candidate);
  }
  return -1;
}

static void enter(unsigned index) {
  group.current = index;
  unsigned x = at->block_size[0], y = at->block_size[1];
  at->thread[0] = index % x, at->thread[1] = index / x % y, at->thread[2] = index / (x * y);
}

static void fiber() {
  for (;;) {
    unsigned self = group.current;
    body(arguments);
    self = group.current;
    group.threads[self].state = State::done;
    void* stack = group.threads[self].stack;
    int next = next_ready();
    void* ignored;
    if (next < 0 || group.threads[next].context) {
      free_stacks[free_count++] = stack;
      if (next >= 0) group.current = unsigned(next);
      umd_switch(&ignored, next < 0 ? scheduler : group.threads[next].context);
    }
    group.threads[next].stack = stack;  // not started yet: it takes over this stack
    group.threads[next].context = stack;
    enter(unsigned(next));
  }
}

static void resume(unsigned index, void** save) {
  Thread& thread = group.threads[index];
  if (!thread.context) {
    thread.stack = free_stacks[--free_count];
    thread.context = fresh_context(static_cast<char*>(thread.stack), fiber);
    enter(index);
  }
  group.current = index;
  umd_switch(save, thread.context);
}

static void leave(void** save) {
  int next = next_ready();
  if (next < 0) umd_switch(save, scheduler);
  else resume(unsigned(next), save);
}

static void wait(State state, int line) {
  Thread& self = group.threads[group.current];
  self.state = state;
  self.line = line;
  leave(&self.context);
}

void stop_thread() {
  Thread& self = group.threads[group.current];
  self.state = State::done;
  self.killed = true;
  void* ignored;
  leave(&ignored);
}

static bool same_mask(unsigned low, unsigned lanes, unsigned mask) {
  for (unsigned k = 0; k < warp_lanes; ++k)
    if ((lanes >> k & 1u) && group.threads[low + k].mask != mask) return false;
  return true;
}

static unsigned lanes_in(unsigned low, unsigned high, State state) {
  unsigned lanes = 0;
  for (unsigned i = low; i < high; ++i) lanes |= group.threads[i].state == state ? 1u << (i - low) : 0u;
  return lanes;
}

static void wake(unsigned low, unsigned lanes) {
  for (unsigned k = 0; k < warp_lanes; ++k)
    if (lanes >> k & 1u) group.threads[low + k].state = State::ready;
  ++group.exchanges[low / warp_lanes];
}

// The common case: every lane of the warp has arrived with one mask.
static bool release_all(unsigned low, unsigned high) {
  unsigned mask = group.threads[low].mask;
  if (mask == active_lanes) return false;
  for (unsigned i = low; i < high; ++i)
    if (group.threads[i].state != State::exchange || group.threads[i].mask != mask) return false;
  for (unsigned i = low; i < high; ++i) {
    group.values[i] = group.threads[i].value;
    group.threads[i].state = State::ready;
  }
  ++group.exchanges[low / warp_lanes];
  return true;
}

// Makes ready those lanes of the warp whose whole mask has arrived. Returns whether there were any.
static bool release(unsigned low, unsigned high) {
  unsigned waiting = lanes_in(low, high, State::exchange), ended = lanes_in(low, high, State::done), released = 0;
  for (unsigned i = low; i < high; ++i) {
    const Thread& thread = group.threads[i];
    unsigned wanted = thread.mask & ~ended & (high - low == warp_lanes ? ~0u : (1u << (high - low)) - 1);
    if (thread.state != State::exchange || thread.mask == active_lanes) continue;
    if ((wanted & waiting) != wanted || !same_mask(low, wanted, thread.mask)) continue;
#ifdef UMD_CHECKED
    for (unsigned j = low; j < high; ++j)  // a lane of the mask that has ended never answers on a device
      if ((thread.mask & ended) >> (j - low) & 1u && !group.threads[j].killed) {
        found(bad_mask, i, thread.line, j, 0);
        break;
      }
#endif
    group.values[i] = thread.value;
    released |= 1u << (i - low);
  }
  if (released) wake(low, released);
  return released != 0;
}

// Answers __activemask once nobody else in the warp can move: those who ask at the same place are together.
static bool release_active(unsigned low, unsigned high) {
  unsigned together = 0;
  int line = 0;
  for (unsigned i = low; i < high; ++i) {
    const Thread& thread = group.threads[i];
    if (thread.state != State::exchange || thread.mask != active_lanes) continue;
    if (!together) line = thread.line;
    if (thread.line == line) together |= 1u << (i - low);
  }
  for (unsigned i = low; i < high; ++i)
    if (together >> (i - low) & 1u) group.values[i] = together;
  if (together) wake(low, together);
  return together != 0;
}

static bool run_warp(unsigned warp, bool shuffled) {
  unsigned low = warp * warp_lanes, high = low + warp_lanes < group.count ? low + warp_lanes : group.count;
  for (;;) {
    if (shuffled) shuffle(group.order + low, high - low);
    group.position = low - 1;
    group.end = high;
    leave(&scheduler);
    if (failed) return false;
    unsigned stuck = max_threads;
    for (unsigned i = low; i < high; ++i)
      if (group.threads[i].state == State::exchange) stuck = i;
    if (stuck == max_threads) return true;
    if (!release_all(low, high) && !release(low, high) && !release_active(low, high)) {
      misuse(divergent_warp, "lanes wait in a warp operation that other lanes of its mask never reach", stuck,
             group.threads[stuck].line, stuck, 0);
      return false;
    }
  }
}

// Returns whether threads are left to run after the barrier that all of them have reached.
static bool resolve_barrier() {
  unsigned waiting = 0, first = 0;
  reduced = arrived = 0;
  unsigned missing = max_threads, elsewhere = max_threads;
  for (unsigned i = 0; i < group.count; ++i) {
    Thread& thread = group.threads[i];
    if (thread.state != State::barrier) {
      if (!thread.killed) missing = i;
      continue;
    }
    if (!waiting++) first = i;
    if (thread.line != group.threads[first].line) elsewhere = i;
    reduced += unsigned(thread.predicate);
  }
  arrived = waiting;
  if (!waiting) return false;
#ifdef UMD_CHECKED
  int line = group.threads[first].line;
  if (missing != max_threads) {
    found(divergent_barrier, missing, 0, first, line);
    fail("a barrier that not every thread of the workgroup reaches", missing, line);
  } else if (elsewhere != max_threads) {
    found(divergent_barrier, elsewhere, group.threads[elsewhere].line, first, line);
    fail("threads wait at different barriers", elsewhere, group.threads[elsewhere].line);
  }
  if (failed) return false;
#else
  (void)missing, (void)elsewhere;  // the hardware counts ended threads as arrived
#endif
  for (unsigned i = 0; i < group.count; ++i)
    if (group.threads[i].state == State::barrier) group.threads[i].state = State::ready;
  ++group.barriers;
  return true;
}

static void reset_stacks() {
  free_count = 0;
  for (unsigned i = group.count; i-- > 0;) {
    char* top = stacks + stack_size * (i + 1) - 64 - (i % 16) * 192;  // staggered: no two tops share a cache set
    free_stacks[free_count++] = reinterpret_cast<void*>(uintptr_t(top) & ~uintptr_t(15));
  }
}

static void run_group(unsigned* warps, unsigned warp_count, bool shuffled) {
  ++group.serial;
  group.barriers = 0;
  memset(group.exchanges, 0, sizeof group.exchanges);
  reset_stacks();  // a stopped thread never gives its stack back
  for (unsigned i = 0; i < group.count; ++i) {
    group.threads[i].context = nullptr;
    group.threads[i].state = State::ready;
    group.threads[i].killed = false;
    group.threads[i].predicate = 0;
  }
#ifdef UMD_CHECKED
  checks_begin_group();
#endif
  do {
    if (shuffled) shuffle(warps, warp_count);
    for (unsigned i = 0; i < warp_count; ++i)
      if (!run_warp(warps[i], shuffled)) return;
  } while (resolve_barrier());
}

}  // namespace umd

using namespace umd;

extern "C" {
alignas(128) __attribute__((visibility("hidden"))) char umd_rt_room[dynamic_size + 2 * dynamic_zone];

__attribute__((visibility("default"))) void umd_set_stacks(void* memory) { stacks = static_cast<char*>(memory); }
__attribute__((visibility("default"))) const char* umd_message() { return message; }

void umd_rt_begin_loop() { in_loop = true, failed = false; }
int umd_rt_end_loop() {
  in_loop = false;
  return failed;
}

int umd_rt_run(Body entry, Coordinates* coordinates, unsigned shared_size, void** values, uint64_t seed) {
  body = entry, arguments = values, at = coordinates;
  const unsigned* size = at->block_size;
  const unsigned* counts = at->block_count;
  failed = false, in_loop = false;
  random_state = seed * 0x9E3779B97F4A7C15ull + 1;
  group.count = size[0] * size[1] * size[2];
  unsigned warps[max_warps], warp_count = (group.count + warp_lanes - 1) / warp_lanes;
  for (unsigned i = 0; i < group.count; ++i) group.order[i] = i;
  for (unsigned i = 0; i < warp_count; ++i) warps[i] = i;
#ifdef UMD_CHECKED
  checks_begin_launch(shared_size);
#else
  (void)shared_size;
#endif
  uint64_t blocks = uint64_t(counts[0]) * counts[1] * counts[2];
  std::vector<unsigned> sequence;
  if (seed) {
    for (uint64_t i = 0; i < blocks; ++i) sequence.push_back(unsigned(i));
    shuffle(sequence.data(), unsigned(blocks));
  }
  group.running = true;
  for (uint64_t i = 0; i < blocks && !failed; ++i) {
    uint64_t block = seed ? sequence[i] : i;
    group.block = unsigned(block);
    at->block[0] = unsigned(block % counts[0]);
    at->block[1] = unsigned(block / counts[0] % counts[1]);
    at->block[2] = unsigned(block / counts[0] / counts[1]);
    run_group(warps, warp_count, seed != 0);
  }
  group.running = false;
  return failed;
}

void umd_rt_barrier(int line) {
  if (in_loop) return fail("a barrier in a kernel that was compiled without fibers", 0, line);
  group.threads[group.current].predicate = 0;
  wait(State::barrier, line);
}

int umd_rt_barrier_reduce(int predicate, int operation, int line) {
  if (in_loop) return fail("a barrier in a kernel that was compiled without fibers", 0, line), 0;
  group.threads[group.current].predicate = predicate != 0;
  wait(State::barrier, line);
  return operation == 2 ? int(reduced) : operation == 1 ? reduced == arrived : reduced > 0;
}

const uint64_t* umd_rt_exchange(unsigned mask, uint64_t value, int line) {
  unsigned self = group.current;
  const uint64_t* values = group.values + (self & ~(warp_lanes - 1));
  if (in_loop) return fail("a warp operation in a kernel that was compiled without fibers", 0, line), values;
#ifdef UMD_CHECKED
  if (!(mask >> (self % warp_lanes) & 1u)) found(bad_mask, self, line, self, 0);
#endif
  group.threads[self].mask = mask;
  group.threads[self].value = value;
  wait(State::exchange, line);
  return values;
}

void umd_rt_check_source(unsigned mask, int source, int line) {
#ifdef UMD_CHECKED
  unsigned self = group.current;
  if (!(mask >> source & 1u)) found(inactive_source, self, line, (self & ~(warp_lanes - 1)) + unsigned(source), 0);
#else
  (void)mask, (void)source, (void)line;
#endif
}

unsigned umd_rt_active(int line) {
  unsigned self = group.current;
  if (in_loop) return fail("a warp operation in a kernel that was compiled without fibers", 0, line), 1;
  group.threads[self].mask = active_lanes;
  wait(State::exchange, line);
  return unsigned(group.values[self]);
}

void umd_rt_trap(int line) {
  misuse(trap, "the kernel trapped", in_loop ? 0 : group.current, line, 0, 0);
  if (!in_loop) stop_thread();
}

#ifndef UMD_CHECKED
void umd_rt_fence() { __asm__ volatile("" ::: "memory"); }
#endif
}
