#!/bin/sh
# A test of two machines, which `cargo qnic exec` starts on both: a server, and a client that asks a hundred times
# whether it listens.
program="ibv_rc_pingpong -d qnic0 -c -n 100"
[ "$QNIC_NODE" = 0 ] && exec $program
for try in $(seq 100); do
    said=$($program a 2>&1) && echo "$said" && exit
    case $said in *"Couldn't connect"*) ;; *) break ;; esac
done
echo "$said" >&2
exit 1
