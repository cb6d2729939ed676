// Average of every window. Generated: T, Number, NUMBER(v), STORE_NUMBER(v), SPATIAL.
#include "pool.cuh"

UMD_SIGNATURE {
  const Index count = product(args.output, SPATIAL) * (Index)args.batch;
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    Offset o[SPATIAL], k[SPATIAL], i[SPATIAL];
    Range taps[SPATIAL];
    const Offset n = (Offset)split_spatial(e, args.output, o);
    TAPS_INSIDE(taps, o)
    const T* x_plane = x + (Offset)args.x_offset + n * (Offset)args.x_strides[0];
    const Index inside = ranges_size(taps);
    Number sum = 0;
    first_tuple(taps, k);
    for (Index t = 0; t < inside; ++t, next_tuple(taps, k)) {
      for (int axis = 0; axis < SPATIAL; ++axis) {
        i[axis] = o[axis] * STRIDE(axis) - PAD(axis) + k[axis] * DILATION(axis);
      }
      sum += NUMBER(x_plane[spatial_offset(i, args.x_strides + 1)]);
    }
    Index divisor = inside;
    if (args.count_pad) {
      TAPS_PADDED(taps, o)
      divisor = ranges_size(taps);
    }
    y[(Offset)args.y_offset + n * (Offset)args.y_strides[0] + spatial_offset(o, args.y_strides + 1)] =
        STORE_NUMBER(inside ? sum / (Number)divisor : (Number)0);
  }
}
