"""fuzz_test: a libFuzzer harness that is also a test."""

load("//tools/build:cc.bzl", "cc_binary", "cc_library", "cc_test")

def fuzz_test(name, srcs, corpus, deps = []):
    """NAME, a test that replays the corpus and mutations of it, and NAME_fuzzer for fuzz.sh.

    Args:
      name: of the test.
      srcs: define LLVMFuzzerTestOneInput.
      corpus: a folder of the package with one input a file; none is too large to read at once.
      deps: of srcs.
    """
    cc_library(
        name = name + "_lib",
        testonly = True,
        srcs = srcs,
        deps = deps,
        alwayslink = True,
    )
    cc_test(
        name = name,
        size = "small",
        args = ["tests/fuzz/" + corpus],
        data = native.glob([corpus + "/**"]),
        deps = [
            name + "_lib",
            ":replay",
        ],
    )

    # Only with --config=fuzz, which brings the main function.
    cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        tags = ["manual"],
        deps = [name + "_lib"],
    )
