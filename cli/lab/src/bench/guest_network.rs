//! An ordinary network between two guests, for what the kernel's path is compared with: virtio
//! network devices, joined by a socket of QEMU.

use anyhow::{Context, Result};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use tempfile::TempDir;

/// The network; its guests end before it.
pub(super) struct GuestNetwork(TempDir);

impl GuestNetwork {
    pub(super) fn new() -> Result<Self> {
        let sockets = tempfile::tempdir();
        Ok(GuestNetwork(
            sockets.context("make a directory for the guests' network")?,
        ))
    }

    /// Arguments of QEMU for the first or the second node.
    pub(super) fn arguments(&self, node: usize) -> Vec<String> {
        let side = ["server=on", "server=off,reconnect-ms=200"][node];
        let path = self.0.path().join("network");
        let path = path.display();
        let netdev = format!("stream,id=peer,{side},addr.type=unix,addr.path={path}");
        let device = format!("virtio-net-pci,netdev=peer,mac=52:54:00:00:00:0{node}");
        let arguments = ["-netdev", &netdev, "-device", &device];
        arguments.map(str::to_owned).to_vec()
    }

    /// Gives both guests their addresses, on the device that they call so.
    pub(super) fn set_up(&self, nodes: &VmNodes, device: &str) -> Result<()> {
        for node in [0, 1] {
            let script = format!(
                "modprobe virtio_net && ip addr add {}/24 dev {device} && ip link set {device} up",
                address(node)
            );
            shell(nodes, node, &script).context("set up the guests' network")?;
        }
        Ok(())
    }
}

/// The address of a node.
pub(super) fn address(node: usize) -> String {
    format!("10.9.0.{}", node + 1)
}
