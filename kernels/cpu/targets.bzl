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

# What sources know of products of BF16 by this.
_BF16_DEFINES = {
    "avx512": [],
    "avx512_bf16": ["SG_BF16_PAIRS"],
    "amx": ["SG_BF16_PAIRS", "SG_AMX"],
}

_DOUBLE_DEFINES = {
    "avx512": [],
    "avx512_bf16": ["SG_AVX512_BF16_DOUBLE"],
    "amx": ["SG_AVX512_BF16_DOUBLE", "SG_AMX_DOUBLE"],
}

def cpu_bf16_library(name, target, deps = [], **kwargs):
    """A cc_library for the one target that multiplies BF16 as its sources do.

    Args:
      name: of the library.
      target: "avx512_bf16" or "amx".
      deps: of the sources.
      **kwargs: of cc_library.
    """
    native.cc_library(
        name = name,
        copts = CPU_COPTS["avx512"],
        local_defines = ["SG_CPU_TARGET=" + target] + _BF16_DEFINES[target],
        deps = deps + ["//kernels/cpu:bf16_products"],
        **kwargs
    )

def cpu_double_library(name, target, deps = [], **kwargs):
    """The sources of a target on any processor, for tests.

    Its vectors are as wide as AVX-512's, as the compiler makes them of narrow
    ones; plain code takes the place of its instructions for BF16.

    Args:
      name: of the library.
      target: "avx512", "avx512_bf16" or "amx"; SG_CPU_TARGET is that with
        "_double" behind it.
      deps: of the sources.
      **kwargs: of cc_library.
    """
    native.cc_library(
        name = name,
        testonly = True,
        copts = CPU_COPTS["baseline"] + ["-Wno-psabi"],
        local_defines = ["__AVX512F__", "SG_CPU_TARGET=" + target + "_double"] +
                        _BF16_DEFINES[target] + _DOUBLE_DEFINES[target],
        deps = deps + ["//kernels/cpu:bf16_products"],
        **kwargs
    )
