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
        copts = ["-include", "tools/build/precompiled/%s.h" % name],
        deps = kwargs.get("deps", []) + [headers],
    )

def cc_library(**kwargs):
    native.cc_library(**_with_headers(_LIBRARY, kwargs))

def cc_binary(**kwargs):
    native.cc_binary(**_with_headers(_LIBRARY, kwargs))

def cc_test(**kwargs):
    """A test; its own sources are optimised less, which shortens their compile time."""
    kwargs = _with_headers(_TEST, kwargs)
    native.cc_test(**dict(
        kwargs,
        copts = kwargs.get("copts", []) + select({
            "//tools/build:optimised": ["-O1"],
            "//conditions:default": [],
        }),
    ))
