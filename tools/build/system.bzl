"""External C++ dependencies taken from Debian packages, under upstream labels.

Headers live in /usr/include, which is a built-in include directory of the
compiler, so a cc_library with link options alone is enough. Static archives
are named with -l:libX.a wherever Debian ships one.
"""

_HDR = 'package(default_visibility = ["//visibility:public"])\n'

def _repo_impl(rctx):
    for f in rctx.attr.probe:
        if not rctx.path(f).exists:
            fail("%s is missing: run tools/setup.sh, or apt-get install %s" % (f, rctx.attr.deb))
    for path, content in rctx.attr.files.items():
        rctx.file(path, _HDR + content if path.endswith("BUILD") else content)
    for src, dst in rctx.attr.links.items():
        rctx.symlink(src, dst)

_repo = repository_rule(
    implementation = _repo_impl,
    local = True,
    attrs = {
        "deb": attr.string(),
        "probe": attr.string_list(),
        "files": attr.string_dict(),
        "links": attr.string_dict(),
    },
)

def _lib(name, linkopts = [], deps = [], defines = []):
    return "cc_library(name=%r, linkopts=%r, deps=%r, defines=%r)\n" % (name, linkopts, deps, defines)

# Upstream package -> its targets in LTS 20220623 (no absl/log, no absl/crc).
_ABSL = {
    "algorithm": ["algorithm", "container"],
    "base": ["base", "config", "core_headers", "endian", "log_severity", "raw_logging_internal"],
    "cleanup": ["cleanup"],
    "container": ["btree", "fixed_array", "flat_hash_map", "flat_hash_set", "inlined_vector", "node_hash_map", "node_hash_set"],
    "debugging": ["debugging", "failure_signal_handler", "leak_check", "stacktrace", "symbolize"],
    "flags": ["commandlineflag", "config", "flag", "marshalling", "parse", "program_name", "reflection", "usage"],
    "functional": ["any_invocable", "bind_front", "function_ref"],
    "hash": ["hash"],
    "memory": ["memory"],
    "meta": ["type_traits"],
    "numeric": ["bits", "int128", "representation"],
    "random": ["bit_gen_ref", "distributions", "random", "seed_sequences"],
    "status": ["status", "statusor"],
    "strings": ["cord", "str_format", "strings"],
    "synchronization": ["synchronization"],
    "time": ["time"],
    "types": ["any", "compare", "optional", "span", "variant"],
    "utility": ["utility"],
}

def _absl_impl(rctx):
    if not rctx.path("/usr/include/absl/base/config.h").exists:
        fail("/usr/include/absl is missing: run tools/setup.sh, or apt-get install libabsl-dev")
    archives = [
        f.basename
        for multiarch in rctx.path("/usr/lib").readdir()
        if multiarch.basename.endswith("-linux-gnu")
        for f in multiarch.readdir()
        if f.basename.startswith("libabsl_") and f.basename.endswith(".a") and "test_util" not in f.basename
    ]
    group = ["-Wl,--start-group"] + ["-l:" + a for a in sorted(archives)] + ["-Wl,--end-group", "-pthread"]
    rctx.file("BUILD", _HDR + _lib("archives", group))
    for package, targets in _ABSL.items():
        rctx.file("absl/%s/BUILD" % package, _HDR + "".join([_lib(t, deps = ["//:archives"]) for t in targets]))

_absl = repository_rule(implementation = _absl_impl, local = True)

_WKT = ["any", "api", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type", "wrappers", "descriptor"]

def _protobuf_build():
    out = _lib("protobuf", ["-l:libprotobuf.a", "-pthread"], ["@zlib"])
    out += _lib("protobuf_lite", ["-l:libprotobuf-lite.a", "-pthread"])
    out += 'exports_files(["protoc"])\n'
    for p in _WKT:
        out += "proto_library(name='%s_proto', srcs=['google/protobuf/%s.proto'], deps=%r)\n" % (p, p, {
            "api": [":source_context_proto", ":type_proto"],
            "type": [":any_proto", ":source_context_proto"],
        }.get(p, []))
    out += "proto_lang_toolchain(name='cc_toolchain', command_line='--cpp_out=$(OUT)', runtime=':protobuf', blacklisted_protos=%r)\n" % [":%s_proto" % p for p in _WKT]
    return out

def system_deps():
    """Declares every external C++ repository but CUDA."""
    _absl(name = "com_google_absl")
    _repo(
        name = "com_google_protobuf",
        deb = "libprotobuf-dev protobuf-compiler",
        probe = ["/usr/include/google/protobuf/message.h", "/usr/bin/protoc"],
        files = {"BUILD": _protobuf_build()},
        links = dict([("/usr/bin/protoc", "protoc")] + [
            ("/usr/include/google/protobuf/%s.proto" % p, "google/protobuf/%s.proto" % p)
            for p in _WKT
        ]),
    )
    _repo(
        name = "com_google_googletest",
        deb = "libgtest-dev libgmock-dev",
        probe = ["/usr/include/gtest/gtest.h", "/usr/include/gmock/gmock.h"],
        files = {"BUILD": _lib("gtest", ["-l:libgmock.a", "-l:libgtest.a", "-pthread"]) +
                          _lib("gtest_main", ["-l:libgtest_main.a"], [":gtest"])},
    )
    _repo(
        name = "com_google_benchmark",
        deb = "libbenchmark-dev",
        probe = ["/usr/include/benchmark/benchmark.h"],
        files = {"BUILD": _lib("benchmark", ["-lbenchmark", "-pthread"]) +
                          _lib("benchmark_main", ["-l:libbenchmark_main.a"], [":benchmark"])},
    )
    _repo(
        name = "onednn",
        deb = "libdnnl-dev",
        probe = ["/usr/include/oneapi/dnnl/dnnl.hpp"],
        files = {"BUILD": _lib("dnnl", ["-ldnnl"])},
    )
    _repo(
        name = "gloo",
        deb = "libgloo-dev",
        probe = ["/usr/include/gloo/context.h"],
        files = {"BUILD": _lib("gloo", ["-lgloo", "-pthread"])},
    )
    _repo(
        name = "nlohmann_json",
        deb = "nlohmann-json3-dev",
        probe = ["/usr/include/nlohmann/json.hpp"],
        files = {"BUILD": _lib("json")},
    )
    _repo(
        name = "icu",
        deb = "libicu-dev",
        probe = ["/usr/include/unicode/uregex.h"],
        files = {"BUILD": _lib("icu", ["-l:libicui18n.a", "-l:libicuuc.a", "-l:libicudata.a", "-ldl", "-pthread"])},
    )

    # It brings an older protobuf of its own, whose names are those of ours: a
    # program must not lend it the functions that both have.
    _repo(
        name = "sentencepiece",
        deb = "libsentencepiece-dev",
        probe = ["/usr/include/sentencepiece_processor.h"],
        files = {
            "BUILD": _lib(
                "sentencepiece",
                ["-lsentencepiece", "-Wl,--version-script=$(location :hide_protobuf.lds)"],
                [":hide_protobuf.lds"],
            ),
            "hide_protobuf.lds": "{ local: *6google8protobuf*; };\n",
        },
    )
    _repo(
        name = "zlib",
        deb = "zlib1g-dev",
        probe = ["/usr/include/zlib.h"],
        files = {"BUILD": _lib("zlib", ["-l:libz.a"])},
    )
