#include "conv.cuh"

UMD_SIGNATURE { direct(x, w, y, args); }
