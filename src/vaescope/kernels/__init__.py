"""Custom C++ kernels, where PyTorch's are far slower than the processor. Everything works without them, more slowly."""
