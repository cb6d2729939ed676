// Data-dependent indices: checked before anything is read or written through them.

// Returns k in [0, axis), or -1 with the status word set.
__device__ inline long long checked(long long k, long long axis, Status* status) {
  if (k < -axis || k >= axis) {
    if (atomicCAS(&status->code, 0u, 1u) == 0u) status->value = k;
    return -1;
  }
  return k < 0 ? k + axis : k;
}
