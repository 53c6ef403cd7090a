"""Compiles .cu files as C++ against the CUDA double."""

# Undefined behaviour traps where it happens; the double says where that was.
_TRAPS = [
    "-fsanitize=alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero,null,bool",
    "-fsanitize-undefined-trap-on-error",
]

_COPTS = [
    "-O2",  # At -O0 the access checker is ten times slower.
    "-g1",  # Reports name file and line.
    "-fno-strict-aliasing",
    "-Wno-unknown-pragmas",  # #pragma unroll
    "-Wa,--no-warn",  # See __shared__ in device.h.
] + select({
    # The sanitizers' own builds: no access checker.
    "//tests/fake_cuda:asan": [],
    "//tests/fake_cuda:tsan": ["-fno-sanitize=thread"] + _TRAPS,
    "//conditions:default": ["-fsanitize=thread", "-DFAKE_CUDA_CHECKED"] + _TRAPS,
})

def cuda_double_library(name, srcs, hdrs = [], deps = [], **kwargs):
    """A cc_library of .cu files, their kernels running on the CPU.

    Args:
      name: of the library.
      srcs: .cu files.
      hdrs: headers.
      deps: libraries; the double is added.
      **kwargs: of the cc_library.
    """
    wrappers = []
    for src in srcs:
        # Bazel compiles no .cu: a .cc that includes it does.
        wrapper = "%s_%s.cc" % (name, src.replace("/", "_").replace(".", "_"))
        native.genrule(
            name = wrapper + "_gen",
            testonly = True,
            outs = [wrapper],
            cmd = "printf '#include \"tests/fake_cuda/device.h\"\\n#include \"%s/%s\"\\n' > $@" %
                  (native.package_name(), src),
        )
        wrappers.append(wrapper)
    native.cc_library(
        name = name,
        srcs = wrappers,
        hdrs = hdrs,
        textual_hdrs = srcs,
        copts = _COPTS,
        deps = deps + ["//tests/fake_cuda"],
        alwayslink = True,
        **kwargs
    )
