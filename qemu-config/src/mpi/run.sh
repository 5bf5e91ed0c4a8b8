# Runs mpirun with the arguments of this script. Open MPI 5.0 may return 0 when it has lost guests, so a job has ended
# well only if its rank 0 has, too: /usr/local/bin/qnic-mpi-rank writes to the file $QNIC_MPI_DONE then.
QNIC_MPI_DONE=$(mktemp /tmp/mpirun.XXXXXX) || exit
export QNIC_MPI_DONE
# mpirun gets the same signal, and ends the ranks.
trap : TERM
mpirun -x QNIC_MPI_DONE "$@"
status=$?
said=$(cat "$QNIC_MPI_DONE")
rm "$QNIC_MPI_DONE"
[ -n "$said" ] || [ "$status" -ne 0 ] || {
    echo "mpirun: it returned 0, but rank 0 did not: a guest may be lost, see \"qnic ps\"" >&2
    exit 1
}
exit "$status"
