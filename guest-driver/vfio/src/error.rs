//! Why a process cannot drive the NIC.

use std::path::PathBuf;

use qnic_host::ConnectError;

/// Why a process cannot drive the NIC through VFIO.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioError {
    /// The function that was named is not there, or has another driver.
    #[error(
        "there is no PCI function {0} that vfio-pci drives: load vfio_iommu_type1 and vfio-pci, and \
         bind it (docs/vfio.md)"
    )]
    NotBound(String),
    /// The process lacks a privilege.
    #[error(
        "this process has not the capability {0}: without translation the NIC reaches all memory of \
         its guest, so the program runs as root or gets that capability (docs/vfio.md)"
    )]
    Privilege(&'static str),
    /// The limit of locked memory is too small.
    #[error(
        "{needed} bytes are to be pinned for the NIC, and RLIMIT_MEMLOCK is {limit}: raise it \
         (`ulimit -l {kilobytes}`), give the program CAP_IPC_LOCK, or lower QNIC_HOST_MEMORY",
        kilobytes = needed.div_ceil(1024)
    )]
    Memlock {
        /// What is needed, in bytes.
        needed: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// VFIO refuses.
    #[error(
        "VFIO does not hand out {}: {error}; one process drives a NIC at a time, and may open files of \
         /dev/vfio", function.display()
    )]
    Open {
        /// The function.
        function: PathBuf,
        /// VFIO's error.
        error: vfio_ioctls::VfioError,
    },
    /// VFIO refuses a part.
    #[error("{what} of the NIC by VFIO: {error}")]
    Vfio {
        /// What was to be done.
        what: &'static str,
        /// VFIO's error.
        error: vfio_ioctls::VfioError,
    },
    /// The system refuses something.
    #[error("{what}: {error}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The function is no NIC of this kind.
    #[error("the PCI function has no {0}: QEMU's device needs page-per-vq=on (docs/vfio.md)")]
    Missing(&'static str),
    /// The device does not do what its specification says.
    #[error("the device {0}: look at the log of QEMU and of the device process")]
    Device(&'static str),
    /// The kernel hides where pages are.
    #[error("the kernel does not say in which frames pages are: /proc/self/pagemap is hidden")]
    Hidden,
}

impl VfioError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| VfioError::System { what, error }
    }

    pub(crate) fn vfio(what: &'static str) -> impl FnOnce(vfio_ioctls::VfioError) -> Self {
        move |error| VfioError::Vfio { what, error }
    }
}

impl From<VfioError> for ConnectError {
    fn from(error: VfioError) -> Self {
        ConnectError::Device(Box::new(error))
    }
}
