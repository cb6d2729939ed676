"""The CUDA backend: our kernels through CuPy on an NVIDIA GPU, and the same sources on a CPU."""
