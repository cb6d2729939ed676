// Convolution, one invocation per element of y. Generated: T, Number, NUMBER(v), STORE_NUMBER(v), SPATIAL.
#include "windows.cuh"

__device__ __forceinline__ void direct(const T* x, const T* w, T* y, const Parameters& args) {
  const Index count = product(args.output, SPATIAL) * (Index)args.batch * (Index)args.groups * (Index)args.out_channels;
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    Offset o[SPATIAL], k[SPATIAL], i[SPATIAL];
    Range taps[SPATIAL];
    Index rest = split_spatial(e, args.output, o);
    const Offset m = (Offset)(rest % (Index)args.out_channels);
    rest /= (Index)args.out_channels;
    const Offset g = (Offset)(rest % (Index)args.groups), n = (Offset)(rest / (Index)args.groups);
    for (int axis = 0; axis < SPATIAL; ++axis) {
      taps[axis] = steps_inside(o[axis] * STRIDE(axis) - PAD(axis), DILATION(axis), (Offset)args.kernel[axis], 0,
                                       (Offset)args.input[axis]);
    }
    const T* x_group = x + (Offset)args.x_offset + n * (Offset)args.x_strides[0] + g * (Offset)args.x_strides[1];
    const T* w_row = w + (Offset)args.w_offset + g * (Offset)args.w_strides[0] + m * (Offset)args.w_strides[1];
    const Index tap_count = ranges_size(taps);
    Number sum = 0;
    first_tuple(taps, k);
    for (Index t = 0; t < tap_count; ++t, next_tuple(taps, k)) {
      for (int axis = 0; axis < SPATIAL; ++axis) {
        i[axis] = o[axis] * STRIDE(axis) - PAD(axis) + k[axis] * DILATION(axis);
      }
      const Offset x_at = spatial_offset(i, args.x_strides + 3), w_at = spatial_offset(k, args.w_strides + 3);
      for (Offset c = 0; c < (Offset)args.in_channels; ++c) {
        sum += NUMBER(x_group[x_at + c * (Offset)args.x_strides[2]]) *
               NUMBER(w_row[w_at + c * (Offset)args.w_strides[2]]);
      }
    }
    y[(Offset)args.y_offset + n * (Offset)args.y_strides[0] + g * (Offset)args.y_strides[1] +
      m * (Offset)args.y_strides[2] + spatial_offset(o, args.y_strides + 3)] = STORE_NUMBER(sum);
  }
}
