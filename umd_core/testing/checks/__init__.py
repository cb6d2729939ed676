"""What the conformance kit checks beside kernels: tables of functions of a device that raise AssertionError."""
