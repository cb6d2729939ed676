#include "conv_input_grad.cuh"

UMD_SIGNATURE { direct(dy, w, dx, args); }
