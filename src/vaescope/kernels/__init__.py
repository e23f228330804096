"""Own C++ kernels, where PyTorch's are far from what a processor can do. Everything works without them, more slowly."""
