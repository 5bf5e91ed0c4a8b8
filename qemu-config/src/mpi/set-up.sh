# Lets processes be started here by whatever has the key in $KEY (base64), whose public half is $PUBLIC, and writes
# what Open MPI uses if its command line does not say otherwise: the NIC. The key is that of the server, too, so the
# guests with it, $NODES, know each other.
umask 077
server=/run/dropbear.pid
key=/root/.ssh/id_dropbear
mkdir -p /root/.ssh /root/.openmpi /root/.prte
if [ -s "$server" ] && kill -0 "$(cat "$server")" 2>/dev/null; then
    [ "$(base64 -w 0 $key)" = "$KEY" ] && exit
    # Another server is to have its port.
    kill "$(cat "$server")"
    while [ -e "$server" ]; do usleep 10000; done
fi
echo "$KEY" | base64 -d >$key
echo "$PUBLIC" >/root/.ssh/authorized_keys
for node in $NODES; do
    echo "$node $PUBLIC"
done >/root/.ssh/known_hosts
cat >/root/.openmpi/mca-params.conf <<'END'
pml = cm
mtl = ofi
mtl_ofi_provider_include = qnic
END
# A guest that is silent for five seconds is missed; if it owes an acknowledgement, which stops the question whether it
# lives, after six repetitions, in 13 seconds.
echo 5 >/proc/sys/net/ipv4/tcp_retries2
cat >/root/.prte/mca-params.conf <<'END'
plm_ssh_agent = dbclient -i /root/.ssh/id_dropbear
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
[ "$status" -ne 0 ] || : >"$QNIC_MPI_DONE"
exit "$status"
END
chmod 700 /usr/local/bin/qnic-mpi-rank
dropbear -r $key -s -j -k -P "$server" </dev/null >/dev/null 2>&1
