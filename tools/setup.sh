#!/bin/bash
# setup.sh: finds what this machine lacks to build and test Shardgraph and
# installs it from Debian's or Ubuntu's packages (as root, or with a sudo that
# asks no password; otherwise it prints the line to type). Finds CUDA, which is
# optional, and says what it found. Running it again changes nothing.
set -euo pipefail

packages=(
  g++ bazel-bootstrap git
  libabsl-dev libprotobuf-dev protobuf-compiler
  libgtest-dev libgmock-dev libbenchmark-dev
  libdnnl-dev libgloo-dev nlohmann-json3-dev zlib1g-dev
  libicu-dev libsentencepiece-dev
  dict-wn gzip xz-utils   # WordNet, the text of quickstart and of some tests
  python3                 # scripts in tools/ only; no program needs it
)

missing() {
  local installed
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null |
    sed -n 's/ installed$//p' || true)
  printf '%s\n' "${packages[@]}" | grep -vxF "${installed:-none}" || true
}

install_packages() {
  local sudo=() line
  line="apt-get update && apt-get install --no-install-recommends $*"
  if ! command -v apt-get >/dev/null; then
    echo "setup: this is not Debian or Ubuntu; install what these packages hold: $*" >&2
    return 1
  fi
  if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      echo "setup: installing needs root. Type this, then run tools/setup.sh again:" >&2
      echo "  sudo sh -c '$line'" >&2
      return 1
    fi
    sudo=(sudo -n)
  fi
  echo "setup: $line"
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update &&
    "${apt[@]}" install -y --no-install-recommends "$@"
}

report_cuda() {
  local home=${CUDA_HOME:-/usr/local/cuda} lib part parts=()
  if [ "$home" = none ] || [ ! -x "$home/bin/nvcc" ]; then
    echo "setup: no CUDA toolkit in $home: CUDA targets are skipped (CUDA_HOME names another place)"
    return
  fi
  lib=$home/lib64
  [ -d "$lib" ] || lib=$home/lib
  for part in cublasLt cudnn nccl; do
    if [ -e "$lib/lib$part.so" ]; then parts+=("$part"); else parts+=("no $part"); fi
  done
  echo "setup: CUDA $("$home/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') in $home (${parts[*]})"
  if [ -e /dev/nvidiactl ]; then
    echo "setup: an NVIDIA driver is loaded"
  else
    echo "setup: no NVIDIA driver: CUDA code builds, programs run on the CPU"
  fi
}

mapfile -t lacking < <(missing)
if [ "${#lacking[@]}" != 0 ]; then
  install_packages "${lacking[@]}" || exit 1
  mapfile -t lacking < <(missing)
  if [ "${#lacking[@]}" != 0 ]; then
    echo "setup: still missing after installing: ${lacking[*]}" >&2
    exit 1
  fi
fi

version=$(g++ -dumpversion)
if [ "${version%%.*}" -lt 12 ]; then
  echo "setup: g++ is version $version; C++20 as used here needs 12 or newer. Remedy: install g++-12 and set CC=gcc-12" >&2
  exit 1
fi
bazel=$(command -v bazel)
if [ "$(readlink -f "$bazel")" != "$(readlink -f /usr/bin/bazel)" ]; then
  echo "setup: note: $bazel comes before /usr/bin/bazel; the build is made for Bazel 4.2 (bazel-bootstrap)"
fi
echo "setup: g++ $version and all ${#packages[@]} packages are there"
report_cuda
