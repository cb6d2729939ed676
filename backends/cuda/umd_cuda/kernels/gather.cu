// Gather: one invocation per element of out. Generated: T (raw bits), I.
#include "indexed.cuh"

UMD_SIGNATURE {
  const Index count = product(args.extents, RANK);
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    const I wanted = index[(Offset)args.index_offset + place(e, args.extents, args.index_strides, RANK)];
    const long long k = checked((long long)wanted, (long long)args.axis, status);
    if (k < 0) continue;
    out[(Offset)args.out_offset + place(e, args.extents, args.out_strides, RANK)] =
        data[(Offset)args.data_offset + place(e, args.extents, args.data_strides, RANK) +
             (Offset)k * (Offset)args.data_strides[RANK]];
  }
}
