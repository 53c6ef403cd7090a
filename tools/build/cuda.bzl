"""cuda_library: compiles .cu files with nvcc and links like a cc_library.

cuda_kernels: the kernels of one op family, for CUDA and for the CUDA double.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("//tests/fake_cuda:double.bzl", "cuda_double_library")
load(":cc.bzl", "cc_library")
load("@local_config_cuda//:defs.bzl", "CUDA_AVAILABLE", "CUDNN_AVAILABLE", "NVCC")

ARCHS = [
    "arch=compute_80,code=[sm_80,compute_80]",  # with PTX for anything newer
    "arch=compute_90a,code=sm_90a",
]

def if_cuda(yes, no = []):
    return yes if CUDA_AVAILABLE else no

# For target_compatible_with: such targets are skipped by `//...` without CUDA.
REQUIRES_CUDA = if_cuda([], ["//tools/build:incompatible"])
REQUIRES_CUDNN = [] if CUDNN_AVAILABLE else ["//tools/build:incompatible"]

def if_cudnn(yes, no):
    return yes if CUDNN_AVAILABLE else no

def _impl(ctx):
    cc = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = cc,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    dep_infos = [d[CcInfo] for d in ctx.attr.deps]
    own = cc_common.create_compilation_context(
        headers = depset(ctx.files.hdrs),
        quote_includes = depset([".", ctx.bin_dir.path]),
        defines = depset(ctx.attr.defines),
    )
    comp = cc_common.merge_cc_infos(
        direct_cc_infos = [CcInfo(compilation_context = own)],
        cc_infos = dep_infos,
    ).compilation_context

    opt = ctx.var["COMPILATION_MODE"] == "opt"
    objs = []
    for src in ctx.files.srcs:
        obj = ctx.actions.declare_file("_objs/%s/%s.o" % (ctx.label.name, src.basename))
        args = ctx.actions.args()
        args.add_all(["-x", "cu", "-c", src, "-o", obj])
        args.add("-ccbin", cc.compiler_executable)
        args.add_all(["-std=c++20", "--expt-relaxed-constexpr", "-Xcompiler=-fPIC"])
        args.add_all(["-O3", "-DNDEBUG", "-lineinfo"] if opt else ["-O1", "-g", "-lineinfo"])
        args.add_all(ARCHS, before_each = "-gencode")
        args.add_all(comp.defines, format_each = "-D%s")
        args.add_all(comp.quote_includes, format_each = "-I%s")
        args.add_all(comp.includes, format_each = "-I%s")
        # nvcc adds its own toolkit include directory; system includes of others:
        args.add_all(
            [i for i in comp.system_includes.to_list() if "local_config_cuda" not in i],
            before_each = "-isystem",
        )
        args.add_all(ctx.attr.copts)
        ctx.actions.run(
            executable = NVCC,
            arguments = [args],
            inputs = depset([src] + ctx.files.hdrs, transitive = [comp.headers, cc.all_files]),
            outputs = [obj],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s with nvcc" % src.short_path,
            use_default_shell_env = True,
        )
        objs.append(obj)

    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = cc,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objs),
            pic_objects = depset(objs),
        ),
        linking_contexts = [i.linking_context for i in dep_infos],
        alwayslink = ctx.attr.alwayslink,
        disallow_dynamic_library = True,
    )
    return [
        DefaultInfo(files = depset(objs)),
        CcInfo(compilation_context = comp, linking_context = linking),
    ]

_cuda_library = rule(
    implementation = _impl,
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".hpp", ".cuh", ".inc"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "defines": attr.string_list(),
        "alwayslink": attr.bool(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
)

def cuda_library(name, deps = [], **kwargs):
    _cuda_library(
        name = name,
        deps = deps + ["@local_config_cuda//:cudart"],
        target_compatible_with = REQUIRES_CUDA,
        **kwargs
    )

def cuda_kernels(
        name,
        srcs,
        hdrs,
        host_srcs,
        deps,
        launch_deps = [],
        uses = [],
        libraries = [],
        library_doubles = []):
    """NAME for programs that run on a GPU, NAME_on_double for tests anywhere.

    Both hold the same host code, compiled once; the double's is linked with
    kernels that g++ has compiled (tests/fake_cuda), the other with nvcc's.

    Args:
      name: of the library.
      srcs: .cu files: kernels, and functions that launch them.
      hdrs: declares those functions; included by both sides.
      host_srcs: .cc files: the KernelDefs.
      deps: of host_srcs.
      launch_deps: of srcs and hdrs, besides //kernels/cuda:launch.
      uses: other cuda_kernels whose launching functions these call.
      libraries: what host_srcs call of NVIDIA's, or what calls it.
      library_doubles: what they call instead on the double, whose own runtime
        has cuBLASLt.
    """
    launch_deps = launch_deps + ["//kernels/cuda:launch"]
    cc_library(
        name = name + "_host",
        srcs = host_srcs,
        hdrs = hdrs,
        visibility = ["//tests/fake_cuda:__pkg__"],
        deps = deps + launch_deps,
    )
    cuda_library(
        name = name + "_device",
        srcs = srcs,
        hdrs = hdrs,
        alwayslink = True,
        visibility = ["//visibility:private"],
        deps = launch_deps,
    )
    cuda_double_library(
        name = name + "_device_on_double",
        testonly = True,
        srcs = srcs,
        hdrs = hdrs,
        visibility = ["//visibility:private"],
        deps = launch_deps,
    )
    native.cc_library(
        name = name,
        target_compatible_with = REQUIRES_CUDA,
        visibility = ["//:backend_users"],
        deps = [
            ":%s_host" % name,
            ":%s_device" % name,
        ] + uses + libraries,
    )
    native.cc_library(
        name = name + "_on_double",
        testonly = True,
        visibility = ["//:backend_users"],
        deps = [
            ":%s_host" % name,
            ":%s_device_on_double" % name,
        ] + [other + "_on_double" for other in uses] + library_doubles,
    )
