#!/bin/bash
# slurm_node.sh start|stop FOLDER: a Slurm cluster of this one node, with its
# files in FOLDER, to be used with SLURM_CONF=FOLDER/slurm.conf. As root, with
# Debian's slurm-wlm. Nothing of it is left after stop.
set -euo pipefail
action=${1:-}
folder=$(realpath -m "${2:-.}")

stop() {
  local name pid
  for name in slurmd slurmctld munged; do
    [ -s "$folder/$name.pid" ] || continue
    pid=$(cat "$folder/$name.pid")
    kill "$pid" 2>/dev/null || continue
    for _ in $(seq 100); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
  done
}

start() {
  mkdir -p "$folder/state" "$folder/spool"
  # A port of its own for each daemon; a second cluster would need others.
  cat >"$folder/slurm.conf" <<END
ClusterName=one
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SelectType=select/cons_tres
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:4 State=UP
END
  start_munge
  export SLURM_CONF=$folder/slurm.conf
  slurmctld
  slurmd
  for _ in $(seq 100); do
    [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ] && return
    sleep 0.2
  done
  echo "slurm_node: the node is not idle:" >&2
  sinfo >&2 || true
  tail -n 20 "$folder/slurmctld.log" "$folder/slurmd.log" >&2
  return 1
}

# Slurm's daemons and tools prove to each other with it who they are.
start_munge() {
  [ -e "$folder/munge.key" ] || dd if=/dev/urandom bs=128 count=1 \
    of="$folder/munge.key" status=none
  chmod 700 "$folder"
  chmod 600 "$folder/munge.key"
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" \
    --seed-file="$folder/munged.seed" 2>>"$folder/munged.err"
}

case $action in
  start) start ;;
  stop) stop ;;
  *)
    echo "slurm_node: unknown action '$action'; use start or stop" >&2
    exit 2
    ;;
esac
