// Scatter by atomics, one invocation an update, for what comes out the same in any order: integers, and extremes.
// Generated: T, I, Number, NUMBER(v), STORE_NUMBER(v), Bits (the unsigned type of T's size), BITS(number), FROM_BITS(b),
// MEET(a, b), and ATOMIC where the hardware has the whole step as one instruction.
#include "indexed.cuh"

__device__ __forceinline__ void meet(T* to, T update) {
#ifdef ATOMIC
  ATOMIC(to, update);
#else
  Bits* const at = (Bits*)to;
  const Number value = NUMBER(update);
  Bits held = *at;
  while (true) {
    const Bits found = atomicCAS(at, held, BITS(MEET(FROM_BITS(held), value)));
    if (found == held) break;
    held = found;
  }
#endif
}

UMD_SIGNATURE {
  const Index count = product(args.extents, RANK);
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    const I wanted = index[(Offset)args.index_offset + place(e, args.extents, args.index_strides, RANK)];
    const long long k = checked((long long)wanted, (long long)args.axis, status);
    if (k < 0) continue;
    meet(out + ((Offset)args.out_offset + place(e, args.extents, args.out_strides, RANK) +
                (Offset)k * (Offset)args.out_strides[RANK]),
         updates[(Offset)args.updates_offset + place(e, args.extents, args.updates_strides, RANK)]);
  }
}
