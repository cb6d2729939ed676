// The checked build. -fsanitize=thread puts a call before every memory access of kernel code; the calls are answered
// here instead of by a sanitizer's runtime: bounds, initialisation, and races by barrier and warp-operation intervals.
#include "runtime.hpp"

#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace umd {
extern "C" char umd_rt_room[];
static char* const dynamic_memory = umd_rt_room + dynamic_zone;

struct Access {  // who, and in which barrier and warp-operation interval
  uint32_t serial, barriers, exchanges, pc;
  uint16_t thread;
  bool atomic;
};
struct Cell { Access write, read, other_read; };  // one per byte
struct Buffer {
  uintptr_t low, high;
  const char* name;         // of a workgroup variable; null for an argument
  Cell* cells;
  uint8_t* written;         // one per byte; null: everything counts as written
};
struct Finding {  // read from Python: keep in step with checking.py
  int32_t kind, buffer;
  const char* name;
  int64_t offset;
  uint64_t pc, other_pc, count;
  uint32_t size, block, thread, other_block, other_thread;
  int32_t line, other_line;
};

static std::vector<Buffer> buffers, shared;
static std::vector<Finding> findings;
// Races of a plain read with an atomic, unless the reader's next step there is an atomic: a compare-and-swap loop.
static std::map<std::tuple<uintptr_t, uint32_t, uint16_t>, Finding> pending;
static std::vector<uint32_t> blocks;  // block index by serial, since the launch began
static uint32_t first_serial;
static uintptr_t module_low, module_high;
static size_t dynamic_used;
static bool fenced[max_threads];
using Serials = std::vector<bool>;    // workgroups, by serial since the launch began
static std::unordered_map<uintptr_t, Serials> published;
static Serials acquired;

static bool is_dynamic(const Buffer& buffer) { return buffer.low == reinterpret_cast<uintptr_t>(dynamic_memory); }

static int find_module(dl_phdr_info* info, size_t, void*) {
  uintptr_t low = ~uintptr_t(0), high = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
    uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    low = std::min(low, begin), high = std::max<uintptr_t>(high, begin + info->dlpi_phdr[i].p_memsz);
  }
  uintptr_t own = reinterpret_cast<uintptr_t>(&buffers);
  if (own < low || own >= high) return 0;
  module_low = low, module_high = high;
  return 1;
}

static uint32_t block_of(uint32_t serial) { return serial < first_serial ? 0 : blocks[serial - first_serial]; }

static void keep(Finding finding) {
  for (Finding& known : findings)
    if (known.kind == finding.kind && known.pc == finding.pc && known.other_pc == finding.other_pc &&
        known.buffer == finding.buffer && known.name == finding.name && known.line == finding.line) {
      ++known.count;
      return;
    }
  if (findings.size() < 256) findings.push_back(finding);
}

void found(Kind kind, unsigned thread, int line, unsigned other_thread, int other_line) {
  keep({kind, -1, nullptr, 0, 0, 0, 1, 0, group.block, thread, group.block, other_thread, line, other_line});
}

void checks_begin_launch(unsigned shared_size) {
  if (!module_high) dl_iterate_phdr(find_module, nullptr);
  first_serial = group.serial + 1;
  blocks.clear();
  published.clear();
  pending.clear();
  dynamic_used = shared_size;
  for (Buffer& buffer : shared)
    if (is_dynamic(buffer)) buffer.high = buffer.low + shared_size;
}

static void clear(Buffer& buffer) {
  size_t size = buffer.high - buffer.low;
  memset(static_cast<void*>(buffer.cells), 0, size * sizeof(Cell));
  memset(buffer.written, 0, size);
  memset(reinterpret_cast<void*>(buffer.low), 0xCD, size);
}

void checks_begin_group() {
  blocks.push_back(group.block);
  memset(fenced, 0, sizeof fenced);
  acquired.assign(blocks.size(), false);
  for (Buffer& buffer : shared) clear(buffer);
}

static bool ordered(const Access& before, const Access& now) {
  if (before.serial < first_serial) return true;  // also: never
  if (before.serial != now.serial) return acquired[before.serial - first_serial];
  if (before.thread == now.thread || before.barriers < now.barriers) return true;
  return before.thread / warp_lanes == now.thread / warp_lanes && before.exchanges < now.exchanges;
}

static Buffer* buffer_at(std::vector<Buffer>& among, uintptr_t address, size_t size) {
  for (Buffer& buffer : among)
    if (address >= buffer.low && address + size <= buffer.high) return &buffer;
  return nullptr;
}

static Buffer* nearest(std::vector<Buffer>& among, uintptr_t address) {
  Buffer* best = nullptr;
  uintptr_t least = ~uintptr_t(0);
  for (Buffer& buffer : among) {
    uintptr_t away = address >= buffer.high ? address - buffer.high : address < buffer.low ? buffer.low - address : 0;
    if (away < least) least = away, best = &buffer;
  }
  return best;
}

static Finding describe(Kind kind, Buffer* buffer, uintptr_t address, size_t size, Access now, Access before) {
  bool argument = buffer && !buffer->name;
  return {kind, argument ? int32_t(buffer - buffers.data()) : -1, buffer ? buffer->name : nullptr,
          buffer ? int64_t(address - buffer->low) : 0, now.pc, before.pc, 1, uint32_t(size), block_of(now.serial),
          now.thread, block_of(before.serial), before.thread, 0, 0};
}

static void race(Buffer& buffer, uintptr_t address, size_t size, bool write, const Access& now, const Access& before,
                 bool before_wrote) {
  Kind kind = write && before_wrote ? race_write_write : race_read_write;
  Finding finding = describe(kind, &buffer, address, size, now, before);
  if (!write && before.atomic) pending.emplace(std::tuple(address, now.serial, now.thread), finding);
  else if (!before_wrote && now.atomic) pending.emplace(std::tuple(address, before.serial, before.thread), finding);
  else keep(finding);
}

// Notes one access in the shadow of a buffer and reports what it collides with.
static void note(Buffer& buffer, uintptr_t address, size_t size, bool write, const Access& now) {
  Cell* cells = buffer.cells + (address - buffer.low);
  uint8_t* written = buffer.written ? buffer.written + (address - buffer.low) : nullptr;
  bool unset = false, raced = false;
  if (now.atomic) pending.erase(std::tuple(address, now.serial, now.thread));
  for (size_t i = 0; i < size; ++i) {
    Cell& cell = cells[i];
    if (written && !written[i] && (!write || now.atomic) && !unset) {
      unset = true;
      keep(describe(uninitialised_read, &buffer, address, size, now, now));
    }
    auto compare = [&](const Access& before, bool before_wrote) {
      if (raced || (now.atomic && before.atomic) || ordered(before, now)) return;
      raced = true;
      race(buffer, address, size, write, now, before, before_wrote);
    };
    compare(cell.write, true);
    if (write) {
      compare(cell.read, false);
      compare(cell.other_read, false);
      cell.write = now;
      if (written) written[i] = 1;
      for (Access* read : {&cell.read, &cell.other_read})
        if (now.atomic && read->serial == now.serial && read->thread == now.thread) read->atomic = true;
    } else if (ordered(cell.read, now)) {
      cell.read = now;
    } else {
      cell.other_read = now;
    }
  }
}

static void stray(bool write, Buffer* near, uintptr_t address, size_t size, const Access& now) {
  keep(describe(write ? out_of_bounds_write : out_of_bounds_read, near, address, size, now, now));
  stop_thread();
}

static void access(void* pointer, size_t size, bool write, bool atomic, uintptr_t pc) {
  if (!group.running) return;
  uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  uintptr_t stack = reinterpret_cast<uintptr_t>(group.threads[group.current].stack);
  if (address <= stack && address + stack_size > stack) return;
  unsigned self = group.current;
  Access now{group.serial, group.barriers, group.exchanges[self / warp_lanes], uint32_t(pc - module_low - 1),
             uint16_t(self), atomic};
  if (address >= module_low && address < module_high) {
    Buffer* variable = buffer_at(shared, address, size);
    if (variable) return note(*variable, address, size, write, now);
    Buffer* near = nearest(shared, address);
    bool wild = near && address + size + dynamic_zone > near->low && address < near->high + dynamic_zone;
    if (!wild) return;  // a variable or constant of the module
    return stray(write, near, address, size, now);
  }
  Buffer* buffer = buffer_at(buffers, address, size);
  if (buffer) return note(*buffer, address, size, write, now);
  stray(write, nearest(buffers, address), address, size, now);
}

// Workgroups order each other by a fence before an atomic on one side and an atomic on the same place on the other.
static void synchronise(uintptr_t address) {
  auto known = published.find(address);
  if (known != published.end())
    for (size_t i = 0; i < known->second.size(); ++i)
      if (known->second[i]) acquired[i] = true;
  if (!fenced[group.current]) return;
  Serials& serials = published[address];
  serials.resize(blocks.size());
  for (size_t i = 0; i < acquired.size(); ++i)
    if (acquired[i]) serials[i] = true;
  serials[group.serial - first_serial] = true;
}

static void add(std::vector<Buffer>& to, void* address, size_t size, size_t room, const char* name, bool track) {
  Cell* cells = static_cast<Cell*>(calloc(room ? room : 1, sizeof(Cell)));
  uint8_t* written = track ? static_cast<uint8_t*>(calloc(room ? room : 1, 1)) : nullptr;
  uintptr_t low = reinterpret_cast<uintptr_t>(address);
  to.push_back({low, low + size, name, cells, written});
}
}  // namespace umd

using namespace umd;
#define UMD_PUBLIC __attribute__((visibility("default")))

extern "C" {
UMD_PUBLIC void umd_forget() {
  for (Buffer& buffer : buffers) free(buffer.cells), free(buffer.written);
  buffers.clear();
  findings.clear();
}
UMD_PUBLIC void umd_watch(void* address, size_t size, int written) {
  add(buffers, address, size, size, nullptr, !written);
}
UMD_PUBLIC size_t umd_findings(const Finding** out) {
  for (auto& race : pending) keep(race.second);
  pending.clear();
  *out = findings.data();
  return findings.size();
}
// For each byte of a watched range whether it was written; null where everything counts as written.
UMD_PUBLIC const uint8_t* umd_written(size_t index) { return buffers[index].written; }

void umd_rt_shared(void* address, size_t size, const char* name) {
  if (address != dynamic_memory) {
    add(shared, address, size, size, name, true);
    return clear(shared.back());
  }
  for (Buffer& buffer : shared)
    if (is_dynamic(buffer)) {
      buffer.name = name;
      return;
    }
  add(shared, address, dynamic_used, dynamic_size, name, true);
  clear(shared.back());
}
void umd_rt_fence() {
  fenced[group.current] = true;
  __asm__ volatile("" ::: "memory");
}
void umd_rt_atomic(void* address, unsigned size, void* caller) {
  access(address, size, true, true, reinterpret_cast<uintptr_t>(caller));
  synchronise(reinterpret_cast<uintptr_t>(address));
}

#define UMD_CALLER reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define UMD_ACCESS(N) \
  void __tsan_read##N(void* p) { access(p, N, false, false, UMD_CALLER); } \
  void __tsan_write##N(void* p) { access(p, N, true, false, UMD_CALLER); } \
  void __tsan_unaligned_read##N(void* p) { access(p, N, false, false, UMD_CALLER); } \
  void __tsan_unaligned_write##N(void* p) { access(p, N, true, false, UMD_CALLER); }
UMD_ACCESS(1)
UMD_ACCESS(2)
UMD_ACCESS(4)
UMD_ACCESS(8)
UMD_ACCESS(16)
void __tsan_read_range(void* p, unsigned long n) { access(p, n, false, false, UMD_CALLER); }
void __tsan_write_range(void* p, unsigned long n) { access(p, n, true, false, UMD_CALLER); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  access(const_cast<void*>(from), n, false, false, UMD_CALLER);
  access(to, n, true, false, UMD_CALLER);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  access(const_cast<void*>(from), n, false, false, UMD_CALLER);
  access(to, n, true, false, UMD_CALLER);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  access(to, n, true, false, UMD_CALLER);
  return memset(to, value, n);
}
}
