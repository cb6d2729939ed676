// What the pooling kernels share.
#include "windows.cuh"

// Writes the taps of output o that lie inside the input.
#define TAPS_INSIDE(taps, o)                                                                                       \
  for (int axis = 0; axis < SPATIAL; ++axis) {                                                                     \
    taps[axis] = steps_inside(o[axis] * STRIDE(axis) - PAD(axis), DILATION(axis), (Offset)args.kernel[axis], 0,       \
                              (Offset)args.input[axis]);                                                              \
  }

// Writes the taps of output o that lie inside the padded input.
#define TAPS_PADDED(taps, o)                                                                                       \
  for (int axis = 0; axis < SPATIAL; ++axis) {                                                                     \
    taps[axis] = steps_inside(o[axis] * STRIDE(axis) - PAD(axis), DILATION(axis), (Offset)args.kernel[axis],          \
                              -PAD(axis), (Offset)args.input[axis] + (Offset)args.pads_end[axis]);                       \
  }
