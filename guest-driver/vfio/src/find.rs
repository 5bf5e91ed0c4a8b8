//! Finds the PCI function of a NIC that vfio-pci drives.

use std::path::{Path, PathBuf};

use qnic_abi::attach::VIRTIO_ID;

use crate::error::VfioError;

/// Where the kernel shows what is bound to vfio-pci.
const BOUND: &str = "/sys/bus/pci/drivers/vfio-pci";

/// Vendor of virtio devices, and device number of the NIC: that of virtio 1.x and its id.
const VENDOR: u16 = 0x1af4;
const DEVICE: u16 = 0x1040 + VIRTIO_ID;

/// The first NIC that is bound to vfio-pci, by its address; none without one.
pub fn find() -> Option<PathBuf> {
    find_in(Path::new(BOUND))
}

/// The NIC with an address, such as `0000:01:00.0`.
///
/// # Errors
/// [`VfioError::NotBound`] if there is none, or vfio-pci does not drive it.
pub fn named(address: &str) -> Result<PathBuf, VfioError> {
    let not_bound = || VfioError::NotBound(address.to_owned());
    let plain = |byte: u8| byte.is_ascii_hexdigit() || b":.".contains(&byte);
    let function = Path::new(BOUND).join(address);
    let is_there = address.bytes().all(plain) && is_nic(&function);
    is_there.then_some(function).ok_or_else(not_bound)
}

fn find_in(bound: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(bound).ok()?;
    let functions = entries.filter_map(|entry| Some(entry.ok()?.path()));
    functions.filter(|function| is_nic(function)).min()
}

fn is_nic(function: &Path) -> bool {
    let number = |name: &str| {
        let text = std::fs::read_to_string(function.join(name)).ok()?;
        u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    number("vendor") == Some(VENDOR) && number("device") == Some(DEVICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other functions are bound to vfio-pci, too, and the driver's folder has other files.
    #[test]
    fn the_first_nic_is_found() {
        let bound = tempfile::tempdir().unwrap();
        assert_eq!(find_in(bound.path()), None);
        for (name, vendor, device) in [
            ("0000:00:03.0", "0x1af4", "0x1041"),
            ("0000:02:00.0", "0x1af4", "0x1067"),
            ("0000:01:00.0", "0x1af4", "0x1067"),
            ("0000:00:04.0", "0x8086", "0x1067"),
            ("new_id", "", ""),
        ] {
            let function = bound.path().join(name);
            std::fs::create_dir(&function).unwrap();
            std::fs::write(function.join("vendor"), format!("{vendor}\n")).unwrap();
            std::fs::write(function.join("device"), format!("{device}\n")).unwrap();
        }
        let found = find_in(bound.path()).unwrap();
        assert_eq!(found, bound.path().join("0000:01:00.0"));
        assert_eq!(find_in(Path::new("/nowhere")), None);
    }

    #[test]
    fn a_function_that_is_not_bound_is_named() {
        for address in ["ffff:ff:1f.7", "..", ""] {
            let error = named(address).unwrap_err().to_string();
            assert!(
                error.contains(&format!("function {address} that vfio-pci")),
                "{error}"
            );
        }
    }
}
