# What a user does who has installed the package: an ordinary one, without compilers.

set -e
test "$(id -u)" != 0
for tool in cargo rustc gcc cc make; do
    if command -v "$tool" >/dev/null; then
        echo "there is a $tool: this root is not clean" >&2
        exit 1
    fi
done
# What others have built on this machine counts for nothing.
rm -rf "$QNIC_CACHE"/build* "$QNIC_CACHE"/headers-* "$QNIC_CACHE"/module-* "$QNIC_CACHE"/vendor-*
cd "$HOME"
qnic --version
# It misses the namespaces that modules are built in: no root that was changed to has them, and the demo needs none.
qnic doctor >&2 || :
qnic demo --json
for made in "$QNIC_CACHE"/build* "$QNIC_CACHE"/module-* "$QNIC_CACHE"/vendor-*; do
    if [ -e "$made" ]; then
        echo "something was built: $made" >&2
        exit 1
    fi
done
test -z "$(qnic ps --json | tr -d '[]\n')"
