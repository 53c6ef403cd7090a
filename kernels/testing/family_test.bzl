"""family_test: a family's test on CPU, reference and CUDA double; its cases for a GPU."""

load("//tools/build:cc.bzl", "cc_test", "cc_test_cases")

def family_test(
        name,
        deps,
        on_double = [":cuda_on_double"],
        hdrs = [],
        size = "small"):
    """A cc_test of NAME.cc, and NAME_cases, which //tests/gpu runs on a GPU.

    Args:
      name: of the test.
      deps: of its source, without what is for the double.
      on_double: the kernels that run on it.
      hdrs: headers of its source alone.
      size: of the test.
    """
    cc_test_cases(
        name = name + "_cases",
        srcs = [name + ".cc"] + hdrs,
        visibility = ["//tests/gpu:__pkg__"],
        deps = deps + [
            "//kernels/testing:conformance",
            "//kernels/testing:cuda_conformance_h",
            "@com_google_googletest//:gtest",
        ],
    )
    cc_test(
        name = name,
        size = size,
        deps = [":%s_cases" % name] + on_double + [
            "//kernels/testing:cuda_conformance",
            "@com_google_googletest//:gtest_main",
        ],
    )
