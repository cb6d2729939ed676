#include "conv_weight_grad.cuh"

UMD_SIGNATURE { direct(dy, x, dw, args); }
