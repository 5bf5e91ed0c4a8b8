# Lets processes be started here by whatever has the key in $KEY (base64), whose public half is $PUBLIC, and writes
# what Open MPI uses if its command line does not say otherwise: the NIC. The key is that of the server, too, so the
# guests with it, $NODES, know each other.
set -e
umask 077
server=/run/dropbear.pid
key=/root/.ssh/id_dropbear
mkdir -p /root/.ssh /root/.openmpi /root/.prte
is_up() {
    case "$(readlink "/proc/$(cat "$server" 2>/dev/null)/exe")" in
    */dropbear) ;;
    *) return 1 ;;
    esac
}
if is_up; then
    [ "$(base64 -w 0 "$key")" != "$KEY" ] || exit 0
    echo "its SSH server has the key of another cluster: reset the node" >&2
    exit 1
fi
echo "$KEY" | base64 -d >"$key.$$"
mv "$key.$$" "$key"
echo "$PUBLIC" >/root/.ssh/authorized_keys
for node in $NODES; do
    echo "$node $PUBLIC"
done >/root/.ssh/known_hosts
cat >/root/.openmpi/mca-params.conf <<'END'
pml = cm
mtl = ofi
mtl_ofi_provider_include = qnic
btl = ofi,self
btl_ofi_mode = 2
btl_ofi_provider_include = qnic
END
# A guest that does not answer keepalives is given up after five seconds. While data are not acknowledged, TCP sends no
# keepalives: it gives the guest up after five repetitions, 13 seconds. SSH asks the other program, which a busy guest
# may let wait: it gives up after 15 seconds.
echo 5 >/proc/sys/net/ipv4/tcp_retries2
cat >/root/.prte/mca-params.conf <<'END'
plm_ssh_agent = dbclient -K 5 -i /root/.ssh/id_dropbear
oob_tcp_keepalive_time = 2
oob_tcp_keepalive_intvl = 1
oob_tcp_keepalive_probes = 3
END
cat >/usr/local/bin/qnic-mpi-rank <<'END'
#!/bin/sh
# Runs a rank. The first one notes that it has returned 0.
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exec "$@"
"$@"
status=$?
[ "$status" -ne 0 ] || echo done >"$QNIC_MPI_DONE"
exit "$status"
END
chmod 700 /usr/local/bin/qnic-mpi-rank
# It listens when this has ended. If another command has started one meanwhile, that has the port.
dropbear -K 5 -r "$key" -s -j -k -P "$server" </dev/null >/dev/null 2>&1 || pidof dropbear >/dev/null || {
    echo "its SSH server does not start: end what else has port 22 there, and try again" >&2
    exit 1
}
