"""gpu_cases: the conformance cases of a family's test, for //tests/gpu."""

load("//tools/build:cc.bzl", "cc_test_cases")

def gpu_cases(test, deps, hdrs = []):
    """TEST_on_gpu: TEST.cc for a GPU; built only where //tests/gpu needs it.

    Args:
      test: name of the cc_test.
      deps: of its source, without what is for the double.
      hdrs: headers of its source alone.
    """
    cc_test_cases(
        name = test + "_on_gpu",
        srcs = [test + ".cc"] + hdrs,
        tags = ["manual"],
        visibility = ["//tests/gpu:__pkg__"],
        deps = deps + [
            "//kernels/testing:conformance",
            "//kernels/testing:cuda_conformance_h",
            "@com_google_googletest//:gtest",
        ],
    )
