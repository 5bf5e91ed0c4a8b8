#!/bin/sh
# A test of two machines, which `cargo qnic exec` starts on both: a server, and a client that asks until it is there.
program="ibv_rc_pingpong -d qnic0 -c -n 100"
case $QNIC_NODE in
0) exec $program ;;
*) until $program a; do :; done ;;
esac
