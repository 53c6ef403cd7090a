"""Compiler options of CPU kernels."""

# Vector code for plain loops; nothing that changes the order of operations.
CPU_COPTS = [
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
]
