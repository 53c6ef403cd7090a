"""Libraries that are compiled once per CPU target (kernels/cpu/target.h)."""

# Vector code for plain loops; nothing that changes the order of operations.
_COMMON_COPTS = ["-O3", "-fno-math-errno", "-fno-trapping-math"]

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

# By target, for sources that are not for all of them. AMX needs no option of its
# own: its instructions are written as such.
CPU_COPTS = {
    target: _COMMON_COPTS + copts
    for target, copts in _COPTS.items()
}

def cpu_target_library(name, srcs, hdrs, deps = [], **kwargs):
    """A cc_library whose sources are compiled for each CPU target.

    Args:
      name: of the library.
      srcs: define everything in namespace shardgraph::SG_CPU_TARGET.
      hdrs: declare it for every target; plain structs only.
      deps: of the sources.
      **kwargs: of each cc_library.
    """
    for target, copts in CPU_COPTS.items():
        native.cc_library(
            name = name + "_" + target,
            srcs = srcs + hdrs,
            copts = copts,
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
