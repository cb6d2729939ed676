// Gradient of a convolution by its weight: each element of dw is a row, summed over batch and outputs in a fixed order.
// Generated: T, Number, NUMBER(v), STORE_NUMBER(v), SPATIAL.
#include "groups.cuh"
#include "windows.cuh"
#define SUM(a, b) ((a) + (b))
DEFINE_ROW_REDUCTION(sum_row, Number, SUM)

__device__ __forceinline__ void direct(const T* dy, const T* x, T* dw, const Parameters& args) {
  __shared__ Number partial[32];
  const Index filters = (Index)args.groups * (Index)args.out_channels;
  const Index rows = product(args.kernel, SPATIAL) * filters * (Index)args.in_channels;
  for (Index row = ROWS_FIRST; row < rows; row += ROWS_STEP) {
    Offset k[SPATIAL], o[SPATIAL], i[SPATIAL];
    Range outputs[SPATIAL];
    Index rest = split_spatial(row, args.kernel, k);
    const Offset c = (Offset)(rest % (Index)args.in_channels);
    rest /= (Index)args.in_channels;
    const Offset m = (Offset)(rest % (Index)args.out_channels), g = (Offset)(rest / (Index)args.out_channels);
    for (int axis = 0; axis < SPATIAL; ++axis) {
      outputs[axis] = steps_inside(k[axis] * DILATION(axis) - PAD(axis), STRIDE(axis), (Offset)args.output[axis], 0,
                                   (Offset)args.input[axis]);
    }
    const T* dy_channel = dy + (Offset)args.dy_offset + g * (Offset)args.dy_strides[1] + m * (Offset)args.dy_strides[2];
    const T* x_channel = x + (Offset)args.x_offset + g * (Offset)args.x_strides[1] + c * (Offset)args.x_strides[2];
    const Index places = ranges_size(outputs);
    const Index length = places * (Index)args.batch;
    Number sum = 0;
    for (Index at = threadIdx.x; at < length; at += blockDim.x) {
      const Index n = at / places;
      tuple_at(at - n * places, outputs, o);
      for (int axis = 0; axis < SPATIAL; ++axis) {
        i[axis] = o[axis] * STRIDE(axis) - PAD(axis) + k[axis] * DILATION(axis);
      }
      sum += NUMBER(dy_channel[(Offset)n * (Offset)args.dy_strides[0] + spatial_offset(o, args.dy_strides + 3)]) *
             NUMBER(x_channel[(Offset)n * (Offset)args.x_strides[0] + spatial_offset(i, args.x_strides + 3)]);
    }
    sum = sum_row(sum, partial);
    if (threadIdx.x == 0) {
      dw[(Offset)args.dw_offset + g * (Offset)args.dw_strides[0] + m * (Offset)args.dw_strides[1] +
         c * (Offset)args.dw_strides[2] + spatial_offset(k, args.dw_strides + 3)] = STORE_NUMBER(sum);
    }
  }
}
