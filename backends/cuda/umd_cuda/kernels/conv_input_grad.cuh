// Gradient of a convolution by its input, one invocation per element of dx gathers what reached it. Generated: T,
// Number, NUMBER(v), STORE_NUMBER(v), SPATIAL.
#include "windows.cuh"

__device__ __forceinline__ void direct(const T* dy, const T* w, T* dx, const Parameters& args) {
  const Index count = product(args.input, SPATIAL) * (Index)args.batch * (Index)args.groups * (Index)args.in_channels;
  DECLARE_LATTICES
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    Offset i[SPATIAL], j[SPATIAL] = {}, k[SPATIAL], o[SPATIAL];
    Meetings meetings[SPATIAL] = {};
    Index rest = split_spatial(e, args.input, i);
    const Offset c = (Offset)(rest % (Index)args.in_channels);
    rest /= (Index)args.in_channels;
    const Offset g = (Offset)(rest % (Index)args.groups), n = (Offset)(rest / (Index)args.groups);
    MEETINGS(meetings, i)
    const T* dy_group = dy + (Offset)args.dy_offset + n * (Offset)args.dy_strides[0] + g * (Offset)args.dy_strides[1];
    const T* w_group = w + (Offset)args.w_offset + g * (Offset)args.w_strides[0] + c * (Offset)args.w_strides[2];
    const Index terms = meetings_size(meetings);
    Number sum = 0;
    for (Index t = 0; t < terms; ++t, next_meeting(meetings, j)) {
      meeting_at(j, meetings, k, o);
      const Offset w_at = spatial_offset(k, args.w_strides + 3), dy_at = spatial_offset(o, args.dy_strides + 3);
      for (Offset m = 0; m < (Offset)args.out_channels; ++m) {
        sum += NUMBER(dy_group[dy_at + m * (Offset)args.dy_strides[2]]) *
               NUMBER(w_group[w_at + m * (Offset)args.w_strides[1]]);
      }
    }
    dx[(Offset)args.dx_offset + n * (Offset)args.dx_strides[0] + g * (Offset)args.dx_strides[1] +
       c * (Offset)args.dx_strides[2] + spatial_offset(i, args.dx_strides + 3)] = STORE_NUMBER(sum);
  }
}
