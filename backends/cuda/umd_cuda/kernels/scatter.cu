// Scatter, deterministic and without atomics. Updates that differ in an extent along which `out` moves go to different
// elements (when the box of those extents and the axis is injective): these extents are spread over invocations. The
// other extents are walked in row-major order by one invocation, so that the last update wins, and sums are formed, in
// the order of the table. The axis is cut into parts, each with invocations of its own.
// Generated: T, I, COMBINES; where updates meet what is there also Number, NUMBER(v), STORE_NUMBER(v), COMBINE(a, b) and
// ROUNDS (T is narrower than Number: a sum or product is rounded once).
#include "indexed.cuh"
#define MOST_PARTS 32

struct Walk {
  unsigned long long extents[RANK];  // 1 where not walked
};

// Returns whether no two index tuples of the axis and of the extents along which `out` moves meet in one element: sorted
// by size, each stride must step over all that the smaller ones span.
__device__ inline bool is_injective(const unsigned long long* extents, const long long* strides, long long axis) {
  long long sorted[RANK + 1], lengths[RANK + 1];
  int count = 0;
  for (int at = 0; at <= RANK; ++at) {
    const long long length = at == RANK ? axis : (long long)extents[at];
    const long long stride = strides[at] < 0 ? -strides[at] : strides[at];
    if (length <= 1 || (at < RANK && stride == 0)) continue;
    int place = count++;
    for (; place > 0 && sorted[place - 1] > stride; --place) {
      sorted[place] = sorted[place - 1];
      lengths[place] = lengths[place - 1];
    }
    sorted[place] = stride;
    lengths[place] = length;
  }
  long long span = 0;
  for (int at = 0; at < count; ++at) {
    if (sorted[at] <= span) return false;
    span += sorted[at] * (lengths[at] - 1);
  }
  return true;
}

UMD_SIGNATURE {
  Walk spread, walk;
  const bool injective = is_injective(args.extents, args.out_strides, (long long)args.axis);
  for (int at = 0; at < RANK; ++at) {
    const bool walked = !injective || args.out_strides[at] == 0;
    walk.extents[at] = walked ? args.extents[at] : 1;
    spread.extents[at] = walked ? 1 : args.extents[at];
  }
  const Index lanes = product(spread.extents, RANK), turns = product(walk.extents, RANK);
  if (lanes == 0 || turns == 0) return;
  Index parts = turns > 1 && injective ? INVOCATIONS / lanes : 1;
  parts = parts < 1 ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts;
  const Index share = ((Index)args.axis + parts - 1) / parts;
  for (Index n = INVOCATION; n < lanes * parts; n += INVOCATIONS) {
    const Index lane = n % lanes, part = n / lanes;
    const Offset index_lane = (Offset)args.index_offset + place(lane, spread.extents, args.index_strides, RANK);
    const Offset updates_lane = (Offset)args.updates_offset + place(lane, spread.extents, args.updates_strides, RANK);
    const Offset out_lane = (Offset)args.out_offset + place(lane, spread.extents, args.out_strides, RANK);
    // the element that an update goes to; -1 when that is another part's, or out of range
    const auto target = [&](Index turn) -> Offset {
      const I wanted = index[index_lane + place(turn, walk.extents, args.index_strides, RANK)];
      const long long k = checked((long long)wanted, (long long)args.axis, status);
      if (k < 0 || (Index)k / share != part) return -1;
      return out_lane + place(turn, walk.extents, args.out_strides, RANK) + (Offset)k * (Offset)args.out_strides[RANK];
    };
    for (Index turn = 0; turn < turns; ++turn) {
      const Offset at = target(turn);
      if (at < 0) continue;
#if COMBINES && ROUNDS
      bool done = false;
      for (Index before = 0; before < turn && !done; ++before) done = target(before) == at;
      if (done) continue;
      Number held = NUMBER(out[at]);
      for (Index later = turn; later < turns; ++later) {
        if (target(later) == at) {
          const Number update = NUMBER(updates[updates_lane + place(later, walk.extents, args.updates_strides, RANK)]);
          held = COMBINE(held, update);
        }
      }
      out[at] = STORE_NUMBER(held);
#elif COMBINES
      const Number held = NUMBER(out[at]);
      const Number update = NUMBER(updates[updates_lane + place(turn, walk.extents, args.updates_strides, RANK)]);
      out[at] = STORE_NUMBER(COMBINE(held, update));
#else
      out[at] = updates[updates_lane + place(turn, walk.extents, args.updates_strides, RANK)];
#endif
    }
  }
}
