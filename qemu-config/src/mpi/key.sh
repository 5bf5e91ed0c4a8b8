# Prints the key with which guests start processes on each other, in base64, and then its public half. If there is
# none, it makes one if $MAKE is set, and prints nothing if not.
set -e
umask 077
key=/root/.ssh/id_dropbear
mkdir -p /root/.ssh
if [ ! -e "$key" ]; then
    [ -n "$MAKE" ] || exit 0
    dropbearkey -t ed25519 -f "$key.$$" >/dev/null
    # Another command may have made one meanwhile, which stays.
    ln "$key.$$" "$key" 2>/dev/null || [ -e "$key" ]
    rm -f "$key.$$" "$key.$$.pub"
fi
base64 -w 0 "$key"
echo
# The client compares all that stands behind the name of a host: no comment may.
public=$(dropbearkey -y -f "$key" | grep '^ssh-')
echo "$public" | cut -d ' ' -f 1,2
