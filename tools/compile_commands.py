#!/usr/bin/env python3
"""Writes compile_commands.json at the top of the tree, for clangd and other tools.

Arguments go to `bazel aquery`, for example --config=nocuda. Run it again after
BUILD files change.
"""
import json
import os
import subprocess
import sys

# GCC's own flags, which clang does not know.
DROPPED = {
    "-fno-canonical-system-headers",
    "-Wno-free-nonheap-object",
    "-Wunused-but-set-parameter",
}


def bazel(*arguments):
    return subprocess.check_output(
        ("bazel",) + arguments, text=True, stderr=subprocess.DEVNULL)


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    workspace = os.getcwd()
    output_base = bazel("info", "output_base").strip()
    query = bazel("aquery", "--output=jsonproto", *sys.argv[1:],
                  'mnemonic("CppCompile", //...)')
    entries = {}
    for action in json.loads(query).get("actions", []):
        arguments = [
            os.path.join(output_base, a) if a.startswith("external/") else a
            for a in action["arguments"] if a not in DROPPED
            and not a.startswith("-Wno-error=")
        ]
        source = next((a for a in arguments if a.endswith(".cc")), None)
        if source and not source.startswith(("/", "bazel-out/")):
            entries[source] = {
                "directory": workspace,
                "file": os.path.join(workspace, source),
                "arguments": arguments,
            }
    with open("compile_commands.json", "w") as out:
        json.dump(list(entries.values()), out, indent=1)
    print(f"compile_commands.json: {len(entries)} files")


if __name__ == "__main__":
    main()
