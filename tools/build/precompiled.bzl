"""precompiled_header: a header compiled once, with the options of every C++ source."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _impl(ctx):
    cc = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = cc,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )

    # A copy away from the sources: the compiler looks for HEADER.gch beside the
    # first HEADER it finds.
    header = ctx.actions.declare_file("precompiled/%s.h" % ctx.label.name)
    compiled = ctx.actions.declare_file("precompiled/%s.h.gch" % ctx.label.name)
    ctx.actions.run_shell(
        inputs = ctx.files.srcs,
        outputs = [header],
        command = 'cat "${@:2}" >"$1"',
        arguments = [header.path] + [f.path for f in ctx.files.srcs],
    )
    instantiate = ["-Xclang", "-fpch-instantiate-templates"] if cc.compiler == "clang" else []
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = cc,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-x", "c++-header"] + instantiate,
        source_file = header.path,
        output_file = compiled.path,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([header], transitive = [cc.all_files]),
        outputs = [compiled],
        # Clang writes down where the header was.
        execution_requirements = {"no-sandbox": "1"},
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % header.short_path,
    )
    return [CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset([header, compiled]),
    ))]

precompiled_header = rule(
    implementation = _impl,
    doc = "Sources deps on it and are compiled with `-include tools/build/precompiled/NAME.h`.",
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    attrs = {
        "srcs": attr.label_list(
            allow_files = [".h"],
            doc = "Includes of headers from outside this repository only, concatenated.",
        ),
        "copts": attr.string_list(doc = "Those of the sources, as of a cc_library."),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
)
