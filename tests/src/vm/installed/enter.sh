# Runs a command in a root of the distribution, in a user and a mount namespace that this is started in, as their root.
#
#   $1       the root, which stays as it is
#   $2       a directory with upper, work and root: what is written goes to upper
#   $3       a cache of qnic, which stays as it is; it is /cache inside
#   $4       a directory with cache-upper and cache-work for it
#   $5       a directory with packages; it is /media inside
#   $6       what the command is run as: root, or user, an ordinary one in a user namespace of its own
#   the rest the command

# dpkg renames directories: for that, the file system of layers has marks that a user may make (userxattr).

set -e
PATH=$PATH:/usr/sbin:/sbin
at=$2/root
mount -t overlay overlay -o "userxattr,lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$at"
mount --rbind /dev "$at/dev"
mount --rbind /proc "$at/proc"
mount -t tmpfs tmpfs "$at/tmp"
mkdir "$at/tmp/cache" "$at/tmp/home"
mount -t overlay overlay -o "userxattr,lowerdir=$3,upperdir=$4/cache-upper,workdir=$4/cache-work" "$at/tmp/cache"
mount --bind "$5" "$at/media"
# Names of the network, should something have to be downloaded.
cp -L /etc/resolv.conf "$at/etc/resolv.conf" || :
as=$6
shift 6
case $as in
root) exec chroot "$at" "$@" ;;
user)
    exec unshare --user --map-user=1000 --map-group=1000 --keep-caps chroot "$at" \
        setpriv --inh-caps=-all --ambient-caps=-all "$@"
    ;;
esac
