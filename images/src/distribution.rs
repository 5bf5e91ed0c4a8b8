//! Which distribution the guests and tools come from.

/// The stable release that everything is taken from.
pub(crate) const STABLE: &str = "trixie";
/// Its suite of newer packages: QEMU and the newest bootable kernels.
pub(crate) const BACKPORTS: &str = "trixie-backports";
/// The architecture of hosts and guests, in the distribution's words.
pub(crate) const ARCHITECTURE: &str = "amd64";
/// Kernels of this flavour have no drivers for hardware that guests never have.
pub(crate) const CLOUD_FLAVOUR: &str = "cloud-amd64";
/// Kernels of this flavour have them.
pub(crate) const GENERIC_FLAVOUR: &str = "amd64";
/// Where the host keeps the keys that sign the distribution's packages.
pub(crate) const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];
