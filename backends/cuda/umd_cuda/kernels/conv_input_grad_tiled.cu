// Gradient of a convolution by its input, pass 1. Inputs that are a window stride apart meet the same taps: for each
// group and each such class a product of the weights (in_channels, out_channels · taps) and the gathered dy, with batch
// and the inputs of the class as columns. Strides are not 0.
#include "conv_input_grad.cuh"
#include "conv_tiles.cuh"

UMD_SIGNATURE {
  if (PASS == 0) return direct(dy, w, dx, args);
  __shared__ Slices slices;
  __shared__ Tap taps[2][SLICE];
  DECLARE_LATTICES
  unsigned long long firsts[SPATIAL];  // classes along each axis: as many as the stride, or the inputs if these are fewer
  for (int axis = 0; axis < SPATIAL; ++axis) {
    firsts[axis] = args.window_strides[axis] < args.input[axis] ? args.window_strides[axis] : args.input[axis];
  }
  const Index products = product(firsts, SPATIAL) * (Index)args.groups;
  for (Index z = blockIdx.z; z < products; z += gridDim.z) {
    Offset first[SPATIAL], tap_first[SPATIAL] = {}, start[SPATIAL] = {};
    unsigned long long inputs[SPATIAL], counts[SPATIAL];
    const Index g = split_spatial(z, firsts, first);
    for (int axis = 0; axis < SPATIAL; ++axis) {
      const Offset at = first[axis] + PAD(axis);
      inputs[axis] = (args.input[axis] - first[axis] + args.window_strides[axis] - 1) / args.window_strides[axis];
      counts[axis] = 0;
      if (!met || at % lattices[axis].divisor != 0) continue;
      tap_first[axis] = first_tap(at, lattices[axis]);
      if (tap_first[axis] >= (Offset)args.kernel[axis]) continue;
      counts[axis] = (args.kernel[axis] - 1 - tap_first[axis]) / lattices[axis].step + 1;
      start[axis] = (at - tap_first[axis] * DILATION(axis)) / STRIDE(axis);
    }
    const T* w_group = w + (Offset)args.w_offset + (Offset)g * (Offset)args.w_strides[0];
    const T* dy_group = dy + (Offset)args.dy_offset + (Offset)g * (Offset)args.dy_strides[1];
    T* dx_group = dx + (Offset)args.dx_offset + (Offset)g * (Offset)args.dx_strides[1];
    const Gather gather = {w_group, (Offset)args.w_strides[2], dy_group, args.output, args.dy_strides + 3,
                           (Index)args.in_channels, product(inputs, SPATIAL) * (Index)args.batch, SPREAD};
    gathered_product(
        gather, slices, taps, 0, product(counts, SPATIAL) * (Index)args.out_channels,
        [&](Index d) {
          Offset k[SPATIAL];
          Tap tap;
          const Offset m = (Offset)split_spatial(d, counts, tap.at);
          for (int axis = 0; axis < SPATIAL; ++axis) {
            k[axis] = tap_first[axis] + tap.at[axis] * lattices[axis].step;
            tap.at[axis] *= -lattices[axis].fall;
          }
          tap.a = m * (Offset)args.w_strides[1] + spatial_offset(k, args.w_strides + 3);
          tap.b = m * (Offset)args.dy_strides[2];
          return tap;
        },
        [&](Index column, Offset* at) {
          const Offset n = (Offset)split_spatial(column, inputs, at);
          for (int axis = 0; axis < SPATIAL; ++axis) at[axis] += start[axis];
          return n * (Offset)args.dy_strides[0];
        },
        [&](Index c, Index column, Number sum) {
          Offset i[SPATIAL];
          const Offset n = (Offset)split_spatial(column, inputs, i);
          for (int axis = 0; axis < SPATIAL; ++axis) i[axis] = first[axis] + i[axis] * STRIDE(axis);
          dx_group[n * (Offset)args.dx_strides[0] + (Offset)c * (Offset)args.dx_strides[2] +
                   spatial_offset(i, args.dx_strides + 3)] = STORE_NUMBER(sum);
        });
  }
}
