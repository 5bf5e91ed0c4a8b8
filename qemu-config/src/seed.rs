//! What a disk image is told when it boots: the volume of cloud-init's data source NoCloud, an ISO 9660
//! image with the label `cidata`.
//!
//! ```text
//! meta-data        host name
//! network-config   the Ethernet port: MAC address, address, MTU; the way out
//! user-data        the key of the cluster, and the command that runs setup
//! address          what its Ethernet port has to have then
//! setup, steps     names, files, the service that starts commands of the host, the report when all is done
//! files, links     which of file0, file1, … goes where, with which mode; which links there are
//! ```

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use qnic_images::{GuestFile, Program};
use serde_json::{json, Value};

use crate::dirs::write;
use crate::qemu::{OUTSIDE_MAC, SEED_SERIAL};
use crate::{ClusterSpec, Error, NodeSpec, Result};

/// Files that are the same on all volumes.
const FIXED: [(&str, &str); 4] = [
    ("setup", include_str!("../seed/setup")),
    ("steps", include_str!("../seed/steps")),
    (
        "qnic-agent.service",
        include_str!("../seed/qnic-agent.service"),
    ),
    (
        "qnic-ready.service",
        include_str!("../seed/qnic-ready.service"),
    ),
];

/// Where the volume is mounted in the guest.
const MOUNTED: &str = "/run/qnic-seed";

/// Makes the volume of `node` as the file `volume`, by way of the directory `scratch`, which is made and
/// removed. The guest gets `files`, and lets the holder of the private part of `key` in.
pub(crate) fn make(
    xorriso: &Program,
    (spec, node): (&ClusterSpec, &NodeSpec),
    files: &[GuestFile],
    key: &str,
    (scratch, volume): (&Path, &Path),
) -> Result<()> {
    fs::create_dir(scratch).map_err(Error::io("create", scratch))?;
    let made = fill((spec, node), files, key, scratch).and_then(|()| {
        let mut command = xorriso.command();
        command.args([
            "-as",
            "mkisofs",
            "-quiet",
            "-volid",
            "cidata",
            "-rational-rock",
            "-joliet",
        ]);
        command.arg("-output").arg(volume).arg(scratch);
        let output = command.output();
        let output = output.map_err(Error::io("start", &xorriso.program))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::Failed {
            subject: format!("node {}", node.name),
            what: format!(
                "xorriso cannot make {} ({})",
                volume.display(),
                output.status
            ),
            log: said.into_owned(),
        })
    });
    let removed = fs::remove_dir_all(scratch).map_err(Error::io("remove", scratch));
    made.and(removed)
}

fn fill(
    (spec, node): (&ClusterSpec, &NodeSpec),
    files: &[GuestFile],
    key: &str,
    dir: &Path,
) -> Result<()> {
    let put = |name: &str, content: &str| write(&dir.join(name), content.as_bytes());
    for (name, content) in FIXED {
        put(name, content)?;
    }
    // cloud-init reads YAML, of which JSON is a part.
    put("user-data", &format!("#cloud-config\n{}\n", user_data(key)))?;
    put("meta-data", &format!("{}\n", meta_data(spec, node)))?;
    put("network-config", &format!("{}\n", network(spec, node)))?;
    if let Some(hosts) = spec.hosts_of(node) {
        put("hosts", &hosts)?;
    }
    if let Some(port) = spec.ethernet_port(&node.name) {
        put("address", &format!("{}\n", port.ip.address()))?;
    }
    if let Some(share) = &node.share {
        put("share", &format!("{}\n", share.at.display()))?;
    }
    let (mut list, mut links) = (String::new(), String::new());
    for (index, file) in files.iter().enumerate() {
        let copy = dir.join(format!("file{index}"));
        fs::copy(&file.host_path, &copy).map_err(Error::io("read", &file.host_path))?;
        let path = file.guest_path.display();
        // Writing to a String cannot fail.
        let _ = writeln!(list, "file{index} {:o} {path}", file.mode);
        for link in &file.links {
            let _ = writeln!(links, "{} {path}", link.display());
        }
    }
    put("files", &list)?;
    put("links", &links)
}

fn user_data(key: &str) -> Value {
    let disk = format!("/dev/disk/by-id/virtio-{SEED_SERIAL}");
    let mount = format!("mkdir -p {MOUNTED} && mount -o ro {disk} {MOUNTED}");
    let run = format!("{mount} && sh {MOUNTED}/setup && umount {MOUNTED}");
    json!({
        // The key is for root as for the user that the image has.
        "disable_root": false,
        "ssh_authorized_keys": [key.trim_end()],
        // The seed names the nodes, and the image may name others.
        "manage_etc_hosts": false,
        "runcmd": [["sh", "-c", run]],
    })
}

fn meta_data(spec: &ClusterSpec, node: &NodeSpec) -> Value {
    let name = &node.name;
    json!({"instance-id": format!("qnic-{}-{name}", spec.name), "local-hostname": name})
}

/// Addresses are written down and not asked for: so the guest needs no DHCP client, and waits for none.
fn network(spec: &ClusterSpec, node: &NodeSpec) -> Value {
    let mut ports = json!({});
    if let Some(port) = spec.ethernet_port(&node.name) {
        ports["eth0"] = json!({
            "match": {"macaddress": port.mac.to_string()},
            "set-name": "eth0",
            "addresses": [port.ip.to_string()],
            "mtu": spec.ethernet().mtu,
        });
    }
    if node.outside {
        ports["outside"] = json!({
            "match": {"macaddress": OUTSIDE_MAC},
            "set-name": "outside",
            "addresses": ["10.0.2.15/24"],
            // Not all versions of cloud-init know it as "default".
            "routes": [{"to": "0.0.0.0/0", "via": "10.0.2.2"}],
            "nameservers": {"addresses": ["10.0.2.3"]},
        });
    }
    json!({"version": 2, "ethernets": ports})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OnOff;

    fn filled(spec: &ClusterSpec, files: &[GuestFile]) -> impl Fn(&str) -> String {
        let dir = tempfile::tempdir().unwrap();
        fill(
            (spec, &spec.nodes[0]),
            files,
            "ssh-ed25519 AAAA qnic\n",
            dir.path(),
        )
        .unwrap();
        move |name: &str| fs::read_to_string(dir.path().join(name)).unwrap_or_default()
    }

    #[test]
    fn a_guest_is_told_its_name_its_addresses_and_the_key() {
        let mut node = NodeSpec::new("a");
        node.outside = true;
        node.share = Some(crate::ShareSpec::new("/results"));
        let spec = ClusterSpec::new("c").with(node).with(NodeSpec::new("b"));
        let seed = filled(&spec, &[]);
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let user = seed("user-data");
        let user = json(user.strip_prefix("#cloud-config\n").unwrap());
        assert_eq!(user["ssh_authorized_keys"][0], "ssh-ed25519 AAAA qnic");
        let command = user["runcmd"][0][2].as_str().unwrap();
        assert!(
            command.contains("/dev/disk/by-id/virtio-qnic-seed "),
            "{command}"
        );
        assert_eq!(json(&seed("meta-data"))["local-hostname"], "a");
        let ports = &json(&seed("network-config"))["ethernets"];
        assert_eq!(ports["eth0"]["match"]["macaddress"], "52:54:00:71:00:00");
        assert_eq!(ports["eth0"]["addresses"][0], "10.71.0.1/16");
        assert_eq!(ports["eth0"]["mtu"], 1500);
        assert_eq!(ports["outside"]["routes"][0]["via"], "10.0.2.2");
        assert_eq!(seed("hosts"), "10.71.0.1 a\n10.71.0.2 b\n");
        assert_eq!(seed("address"), "10.71.0.1\n");
        assert_eq!(seed("share"), "/mnt/share\n");
    }

    #[test]
    fn files_and_links_are_listed_and_what_the_file_does_not_say_is_left_out() {
        let mut spec = ClusterSpec::new("c").with(NodeSpec::new("a"));
        spec.ethernet = OnOff::Off;
        let content = tempfile::NamedTempFile::new().unwrap();
        fs::write(content.path(), "hello").unwrap();
        let file = GuestFile {
            guest_path: "/usr/bin/a program".into(),
            host_path: content.path().into(),
            mode: 0o755,
            links: vec!["/usr/bin/b".into()],
        };
        let seed = filled(&spec, &[file]);
        assert_eq!(seed("files"), "file0 755 /usr/bin/a program\n");
        assert_eq!(seed("file0"), "hello");
        assert_eq!(seed("links"), "/usr/bin/b /usr/bin/a program\n");
        assert_eq!(
            (seed("hosts"), seed("share")),
            (String::new(), String::new())
        );
        assert_eq!(seed("network-config"), "{\"ethernets\":{},\"version\":2}\n");
    }
}
