// Convolution, pass 1: for each group a product of the weights (out_channels, in_channels · taps) and the gathered
// inputs, with batch and outputs as columns.
#include "conv.cuh"
#include "conv_tiles.cuh"

UMD_SIGNATURE {
  if (PASS == 0) return direct(x, w, y, args);
  __shared__ Slices slices;
  __shared__ Tap taps[2][SLICE];
  for (Index g = blockIdx.z; g < (Index)args.groups; g += gridDim.z) {
    const T* w_group = w + (Offset)args.w_offset + (Offset)g * (Offset)args.w_strides[0];
    const T* x_group = x + (Offset)args.x_offset + (Offset)g * (Offset)args.x_strides[1];
    T* y_group = y + (Offset)args.y_offset + (Offset)g * (Offset)args.y_strides[1];
    const Gather gather = {w_group, (Offset)args.w_strides[1], x_group, args.input, args.x_strides + 3,
                           (Index)args.out_channels, product(args.output, SPATIAL) * (Index)args.batch, SPREAD};
    gathered_product(
        gather, slices, taps, 0, (Index)args.in_channels * product(args.kernel, SPATIAL),
        [&](Index d) {
          Offset k[SPATIAL];
          Tap tap;
          const Offset c = (Offset)split_spatial(d, args.kernel, k);
          tap.a = c * (Offset)args.w_strides[2] + spatial_offset(k, args.w_strides + 3);
          tap.b = c * (Offset)args.x_strides[2];
          for (int axis = 0; axis < SPATIAL; ++axis) tap.at[axis] = k[axis] * DILATION(axis);
          return tap;
        },
        [&](Index column, Offset* at) {
          const Offset n = (Offset)split_spatial(column, args.output, at);
          for (int axis = 0; axis < SPATIAL; ++axis) at[axis] = at[axis] * STRIDE(axis) - PAD(axis);
          return n * (Offset)args.x_strides[0];
        },
        [&](Index m, Index column, Number sum) {
          Offset o[SPATIAL];
          const Offset n = (Offset)split_spatial(column, args.output, o);
          y_group[n * (Offset)args.y_strides[0] + (Offset)m * (Offset)args.y_strides[2] +
                  spatial_offset(o, args.y_strides + 3)] = STORE_NUMBER(sum);
        });
  }
}
