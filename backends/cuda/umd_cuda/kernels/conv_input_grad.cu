// Gradient of a convolution by its input: one invocation per element of dx gathers what reached it. Generated: T,
// Number, NUMBER(v), STORE_NUMBER(v), SPATIAL.
#include "windows.cuh"

UMD_SIGNATURE {
  const Index count = product(args.input, SPATIAL) * (Index)args.batch * (Index)args.groups * (Index)args.in_channels;
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    Offset i[SPATIAL], k[SPATIAL], o[SPATIAL];
    Range taps[SPATIAL], outputs[SPATIAL];
    Index rest = split_spatial(e, args.input, i);
    const Offset c = (Offset)(rest % (Index)args.in_channels);
    rest /= (Index)args.in_channels;
    const Offset g = (Offset)(rest % (Index)args.groups), n = (Offset)(rest / (Index)args.groups);
    bool empty = false;
    for (int axis = 0; axis < SPATIAL; ++axis) {
      empty = empty || args.output[axis] == 0;
      const Offset furthest = ((Offset)args.output[axis] - 1) * STRIDE(axis);
      taps[axis] = steps_inside(-i[axis] - PAD(axis), DILATION(axis), (Offset)args.kernel[axis], -furthest, 1);
    }
    const T* dy_group = dy + (Offset)args.dy_offset + n * (Offset)args.dy_strides[0] + g * (Offset)args.dy_strides[1];
    const T* w_group = w + (Offset)args.w_offset + g * (Offset)args.w_strides[0] + c * (Offset)args.w_strides[2];
    const Index tap_count = empty ? 0 : ranges_size(taps);
    Number sum = 0;
    for (Index t = 0; t < tap_count; ++t) {
      tuple_at(t, taps, k);
      for (int axis = 0; axis < SPATIAL; ++axis) {
        outputs[axis] = outputs_at(i[axis] + PAD(axis) - k[axis] * DILATION(axis), STRIDE(axis), (Offset)args.output[axis]);
      }
      const Offset w_at = spatial_offset(k, args.w_strides + 3);
      const Index meetings = ranges_size(outputs);
      for (Index meeting = 0; meeting < meetings; ++meeting) {
        tuple_at(meeting, outputs, o);
        const Offset dy_at = spatial_offset(o, args.dy_strides + 3);
        for (Offset m = 0; m < (Offset)args.out_channels; ++m) {
          sum += NUMBER(dy_group[dy_at + m * (Offset)args.dy_strides[2]]) *
                 NUMBER(w_group[w_at + m * (Offset)args.w_strides[1]]);
        }
      }
    }
    dx[(Offset)args.dx_offset + n * (Offset)args.dx_strides[0] + g * (Offset)args.dx_strides[1] + c * (Offset)args.dx_strides[2] +
       spatial_offset(i, args.dx_strides + 3)] = STORE_NUMBER(sum);
  }
}
