// Gradient of a convolution by its weight, pass 1: for each group a product of dy (out_channels, batch · outputs) and
// the gathered inputs, with in_channels and taps as columns. It is cut along its depth: the parts' products wait in
// scratch until pass 2 adds them up in order.
#include "conv_weight_grad.cuh"
#include "conv_tiles.cuh"

UMD_SIGNATURE {
  if (PASS == 0) return direct(dy, x, dw, args);
  __shared__ Slices slices;
  __shared__ Tap taps[2][SLICE];
  Number* const found = SCRATCH(Number);
  const Index groups = (Index)args.groups, rows = (Index)args.out_channels;
  const Index columns = (Index)args.in_channels * product(args.kernel, SPATIAL);
  const auto place_of = [&](Index g, Index m, Index column) -> T* {
    Offset k[SPATIAL];
    const Offset c = (Offset)split_spatial(column, args.kernel, k);
    return dw + (Offset)args.dw_offset + (Offset)g * (Offset)args.dw_strides[0] +
           (Offset)m * (Offset)args.dw_strides[1] + c * (Offset)args.dw_strides[2] +
           spatial_offset(k, args.dw_strides + 3);
  };
  if (PASS == 2) {
    const Index count = groups * rows * columns;
    for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
      Number sum = 0;
      for (Index part = 0; part < PARTS; ++part) sum += found[part * count + e];
      const Index row = e / columns, g = row / rows;
      *place_of(g, row - g * rows, e - row * columns) = STORE_NUMBER(sum);
    }
    return;
  }
  for (Index n = blockIdx.z; n < groups * PARTS; n += gridDim.z) {
    const Index part = n / groups, g = n - part * groups;
    const Stretch deep = stretch_at(part, PARTS, product(args.output, SPATIAL) * (Index)args.batch);
    const T* dy_group = dy + (Offset)args.dy_offset + (Offset)g * (Offset)args.dy_strides[1];
    const T* x_group = x + (Offset)args.x_offset + (Offset)g * (Offset)args.x_strides[1];
    const Gather gather = {dy_group, (Offset)args.dy_strides[2], x_group, args.input, args.x_strides + 3,
                           rows, columns, ALONG_DEPTH};
    gathered_product(
        gather, slices, taps, deep.first, deep.last,
        [&](Index d) {
          Tap tap;
          const Offset batch = (Offset)split_spatial(d, args.output, tap.at);
          tap.a = batch * (Offset)args.dy_strides[0] + spatial_offset(tap.at, args.dy_strides + 3);
          tap.b = batch * (Offset)args.x_strides[0];
          for (int axis = 0; axis < SPATIAL; ++axis) tap.at[axis] = tap.at[axis] * STRIDE(axis) - PAD(axis);
          return tap;
        },
        [&](Index column, Offset* at) {
          const Offset c = (Offset)split_spatial(column, args.kernel, at);
          for (int axis = 0; axis < SPATIAL; ++axis) at[axis] *= DILATION(axis);
          return c * (Offset)args.x_strides[2];
        },
        [&](Index m, Index column, Number sum) {
          if (PARTS > 1) {
            found[(n * rows + m) * columns + column] = sum;
          } else {
            *place_of(g, m, column) = STORE_NUMBER(sum);
          }
        });
  }
}
