"""Libraries that are compiled once per CPU target (kernels/cpu/target.h)."""

load("//kernels/cpu:copts.bzl", "CPU_COPTS")

_COPTS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": [
        "-mavx2",
        "-mfma",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mprefer-vector-width=512",
    ],
}

# AMX needs no option: its instructions are written as such.
AMX_COPTS = _COPTS["avx512"]

def cpu_target_library(name, srcs, hdrs, deps = [], **kwargs):
    """A cc_library whose sources are compiled for each CPU target.

    Args:
      name: of the library.
      srcs: define everything in namespace shardgraph::SG_CPU_TARGET.
      hdrs: declare it for every target; plain structs only.
      deps: of the sources.
      **kwargs: of each cc_library.
    """
    for target, copts in _COPTS.items():
        native.cc_library(
            name = name + "_" + target,
            srcs = srcs + hdrs,
            copts = CPU_COPTS + copts,
            deps = deps,
            local_defines = ["SG_CPU_TARGET=" + target],
            **kwargs
        )
    native.cc_library(
        name = name,
        hdrs = hdrs,
        deps = [":" + name + "_" + target for target in _COPTS],
        **kwargs
    )
