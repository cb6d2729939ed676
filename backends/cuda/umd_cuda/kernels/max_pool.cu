// Largest element of every window, and its position. Generated: T, Number, NUMBER(v), STORE_NUMBER(v), INFINITE,
// SPATIAL, HAS_INDEX.
#include "pool.cuh"

UMD_SIGNATURE {
  const Index count = product(args.output, SPATIAL) * (Index)args.batch;
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    Offset o[SPATIAL], k[SPATIAL], i[SPATIAL];
    Range taps[SPATIAL];
    const Offset n = (Offset)split_spatial(e, args.output, o);
    TAPS_INSIDE(taps, o)
    const T* x_plane = x + (Offset)args.x_offset + n * (Offset)args.x_strides[0];
    const Index tap_count = ranges_size(taps);
    Number most = -INFINITE;
#if HAS_INDEX
    long long best = 0;
#endif
    first_tuple(taps, k);
    for (Index t = 0; t < tap_count; ++t, next_tuple(taps, k)) {
      for (int axis = 0; axis < SPATIAL; ++axis) {
        i[axis] = o[axis] * STRIDE(axis) - PAD(axis) + k[axis] * DILATION(axis);
      }
      const Number value = NUMBER(x_plane[spatial_offset(i, args.x_strides + 1)]);
      if (t == 0 || (most == most && (value != value || value > most))) {
        most = value;
#if HAS_INDEX
        best = 0;
        for (int axis = 0; axis < SPATIAL; ++axis) best = best * (long long)args.input[axis] + i[axis];
#endif
      }
    }
    y[(Offset)args.y_offset + n * (Offset)args.y_strides[0] + spatial_offset(o, args.y_strides + 1)] = STORE_NUMBER(most);
#if HAS_INDEX
    index[(Offset)args.index_offset + n * (Offset)args.index_strides[0] + spatial_offset(o, args.index_strides + 1)] = best;
#endif
  }
}
