# The package of guests, in a root of a disk image with compilers, headers and DKMS beneath it. What it depends on is
# there, and not known to dpkg.

set -e
echo "installing the package of guests: DKMS builds the module"
if ! dpkg --force-depends -i /mnt/qnic-guest_*.deb >/tmp/log 2>&1; then
    tail -n 12 /tmp/log /var/lib/dkms/qnic/*/build/make.log >&2
    exit 1
fi
dkms status qnic | grep -q ': installed'
for module in qnic qnic_ib; do
    ls /usr/lib/modules/*/updates/dkms/$module.ko* >/dev/null
done
qnic-rmem --help >/dev/null
test -f /usr/lib/x86_64-linux-gnu/libfabric/libqnic-fi.so

echo "compiling a program in C"
cat >/tmp/open.c <<'END'
#include <qnic.h>
#include <stdio.h>

/* There is no NIC: the library says so. */
int main(void) {
    qnic_nic *nic;
    int code = qnic_open(NULL, &nic);
    if (code == 0)
        return 1;
    puts(qnic_strerror(code));
    return 0;
}
END
gcc -Wall -Werror /tmp/open.c -o /tmp/open -lqnic
ldd /tmp/open | grep -q '/lib/libqnic.so.0'
/tmp/open

echo "removing the package of guests"
dpkg --purge qnic-guest >/tmp/log 2>&1
for left in /usr/src/qnic* /var/lib/dkms/qnic* /usr/lib/modules/*/updates/dkms/qnic* /usr/include/qnic* \
    /usr/lib/libqnic* /usr/lib/pkgconfig/libqnic* /usr/lib/x86_64-linux-gnu/libfabric/libqnic* /usr/bin/qnic*; do
    if [ -e "$left" ]; then
        echo "the package has left $left" >&2
        exit 1
    fi
done
