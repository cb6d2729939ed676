// Gradient of the average by its input: one invocation per element of dx gathers from the windows that hold it.
// Generated: T, Number, NUMBER(v), STORE_NUMBER(v), SPATIAL.
#include "pool.cuh"

UMD_SIGNATURE {
  const Index count = product(args.input, SPATIAL) * (Index)args.batch;
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    Offset i[SPATIAL], k[SPATIAL], o[SPATIAL];
    Range taps[SPATIAL], outputs[SPATIAL], counted[SPATIAL];
    const Offset n = (Offset)split_spatial(e, args.input, i);
    bool empty = false;
    for (int axis = 0; axis < SPATIAL; ++axis) {
      empty = empty || args.output[axis] == 0;
      const Offset furthest = ((Offset)args.output[axis] - 1) * STRIDE(axis);
      taps[axis] = steps_inside(-i[axis] - PAD(axis), DILATION(axis), (Offset)args.kernel[axis], -furthest, 1);
    }
    const T* dy_plane = dy + (Offset)args.dy_offset + n * (Offset)args.dy_strides[0];
    const Index tap_count = empty ? 0 : ranges_size(taps);
    Number sum = 0;
    for (Index t = 0; t < tap_count; ++t) {
      tuple_at(t, taps, k);
      for (int axis = 0; axis < SPATIAL; ++axis) {
        outputs[axis] = outputs_at(i[axis] + PAD(axis) - k[axis] * DILATION(axis), STRIDE(axis), (Offset)args.output[axis]);
      }
      const Index meetings = ranges_size(outputs);
      for (Index meeting = 0; meeting < meetings; ++meeting) {
        tuple_at(meeting, outputs, o);
        if (args.count_pad) {
          TAPS_PADDED(counted, o)
        } else {
          TAPS_INSIDE(counted, o)
        }
        sum += NUMBER(dy_plane[spatial_offset(o, args.dy_strides + 1)]) / (Number)ranges_size(counted);
      }
    }
    dx[(Offset)args.dx_offset + n * (Offset)args.dx_strides[0] + spatial_offset(i, args.dx_strides + 1)] = STORE_NUMBER(sum);
  }
}
