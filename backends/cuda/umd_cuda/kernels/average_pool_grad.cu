// Gradient of the average by its input: one invocation per element of dx gathers from the windows that hold it.
// Generated: T, Number, NUMBER(v), STORE_NUMBER(v), SPATIAL.
#include "pool.cuh"

UMD_SIGNATURE {
  const Index count = product(args.input, SPATIAL) * (Index)args.batch;
  DECLARE_LATTICES
  for (Index e = INVOCATION; e < count; e += INVOCATIONS) {
    Offset i[SPATIAL], j[SPATIAL] = {}, k[SPATIAL], o[SPATIAL];
    Meetings meetings[SPATIAL] = {};
    Range counted[SPATIAL];
    const Offset n = (Offset)split_spatial(e, args.input, i);
    MEETINGS(meetings, i)
    const T* dy_plane = dy + (Offset)args.dy_offset + n * (Offset)args.dy_strides[0];
    const Index terms = meetings_size(meetings);
    Number sum = 0;
    for (Index t = 0; t < terms; ++t, next_meeting(meetings, j)) {
      meeting_at(j, meetings, k, o);
      if (args.count_pad) {
        TAPS_PADDED(counted, o)
      } else {
        TAPS_INSIDE(counted, o)
      }
      sum += NUMBER(dy_plane[spatial_offset(o, args.dy_strides + 1)]) / (Number)ranges_size(counted);
    }
    dx[(Offset)args.dx_offset + n * (Offset)args.dx_strides[0] + spatial_offset(i, args.dx_strides + 1)] =
        STORE_NUMBER(sum);
  }
}
