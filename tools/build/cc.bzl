"""cc_library, cc_test and cc_binary for this repository: Bazel's own, with precompiled headers.

Most of a file's compile time goes into parsing the standard library, Abseil
and GoogleTest. Their headers are compiled once (precompiled.bzl) and put in
front of every source; a source still includes what it uses.
"""

_LIBRARY = "//tools/build:library_headers"
_TEST = "//tools/build:test_headers"

# Options of its own (a CPU target, -O3) would not match the precompiled header's.
def _with_headers(headers, kwargs):
    if not kwargs.get("srcs") or kwargs.get("copts"):
        return kwargs
    name = Label(headers).name
    return dict(
        kwargs,
        copts = ["-include", "$(BINDIR)/tools/build/precompiled/%s.h" % name],
        deps = kwargs.get("deps", []) + [headers],
    )

# What runs once, or waits for the engine, is optimised less, which shortens its
# compile time; but not what goes through all the text or all the bytes there are.
_BUSY = ["fsdp/data", "fsdp/files", "tools/text"]

def _source(kwargs):
    package = native.package_name()
    own = kwargs.get("copts")
    kwargs = _with_headers(_LIBRARY, kwargs)
    if own or package in _BUSY or not package.startswith(("fsdp/", "tools/", "tests/")):
        return kwargs
    return dict(
        kwargs,
        copts = kwargs.get("copts", []) + select({
            "//tools/build:optimised": ["-O1"],
            "//conditions:default": [],
        }),
    )

def cc_library(**kwargs):
    native.cc_library(**_source(kwargs))

def cc_binary(**kwargs):
    native.cc_binary(**_source(kwargs))

# A test's own sources are not optimised, which shortens their compile time.
# FORTIFY_SOURCE needs the optimiser.
TEST_COPTS = select({
    "//tools/build:optimised": ["-O0", "-U_FORTIFY_SOURCE"],
    "//conditions:default": [],
})

def _test_source(kwargs):
    kwargs = _with_headers(_TEST, kwargs)
    return dict(
        kwargs,
        copts = kwargs.get("copts", []) + TEST_COPTS,
    )

def cc_test(**kwargs):
    native.cc_test(**_test_source(kwargs))

def cc_test_cases(**kwargs):
    """Test cases compiled once, for cc_tests without srcs that run them in several environments."""
    native.cc_library(**dict(_test_source(kwargs), alwayslink = True, testonly = True))
