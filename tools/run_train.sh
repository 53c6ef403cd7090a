#!/bin/bash
# Runs the program in $1 with the config in $2; a config that is a file of the runfiles is named by its full path, since
# the program takes relative paths from where the user is.
set -euo pipefail
program=$1
config=${2#--config=}
shift 2
[ -f "$config" ] && config=$PWD/$config
exec "$program" "--config=$config" "$@"
