//! Which NICs this process could open, by its environment. None is opened: in host mode that would make this
//! process the node.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use qnic::provider::linux::DEFAULT_DEVICE;
use qnic::{DEVICE_VARIABLE, HOST_SOCKET_VARIABLE, NIC_VARIABLE, VFIO_VARIABLE};

/// Name of the domain of a NIC that has none: in host mode, on VFIO.
const UNNAMED: &str = "qnic0";

/// The name of the domain of the NIC that `qnic::Nic::open` would open; `None`: there is none.
pub(crate) fn find() -> Option<String> {
    find_with(|name| std::env::var_os(name), Path::exists)
}

fn find_with(
    variable: impl Fn(&str) -> Option<OsString>,
    is_there: impl Fn(&Path) -> bool,
) -> Option<String> {
    let chosen = variable(NIC_VARIABLE).and_then(|name| name.into_string().ok());
    if variable(HOST_SOCKET_VARIABLE).is_some() || variable(VFIO_VARIABLE).is_some() {
        return Some(chosen.unwrap_or_else(|| UNNAMED.to_owned()));
    }
    if chosen.is_some() {
        return chosen;
    }
    let device = variable(DEVICE_VARIABLE).unwrap_or_else(|| DEFAULT_DEVICE.into());
    let device = PathBuf::from(device);
    let name = device.file_name().map(OsStr::to_string_lossy);
    name.filter(|_| is_there(&device)).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(set: &[(&str, &str)], devices: &[&str]) -> Option<String> {
        let variable = |name: &str| {
            let found = set.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| OsString::from(value))
        };
        find_with(variable, |path| {
            devices.iter().any(|it| Path::new(it) == path)
        })
    }

    #[test]
    fn a_domain_has_the_name_of_its_nic() {
        assert_eq!(found(&[], &[]), None);
        assert_eq!(found(&[], &["/dev/qnic0"]).as_deref(), Some("qnic0"));
        assert_eq!(found(&[(DEVICE_VARIABLE, "/dev/x")], &["/dev/qnic0"]), None);
        assert_eq!(
            found(&[(HOST_SOCKET_VARIABLE, "a.sock")], &[]).as_deref(),
            Some("qnic0")
        );
        let named = [(HOST_SOCKET_VARIABLE, "a.sock"), (NIC_VARIABLE, "disks")];
        assert_eq!(found(&named, &[]).as_deref(), Some("disks"));
    }
}
