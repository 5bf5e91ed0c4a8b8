//! Two network namespaces joined by a pair of virtual Ethernet devices: two hosts on
//! one machine. Needs the right to make them.

use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::harness::Skip;

/// Two network namespaces that reach each other; they go with this object.
pub(crate) struct TwoHosts {
    names: [String; 2],
}

/// Addresses of the two.
pub(crate) const ADDRESSES: [&str; 2] = ["10.83.77.1", "10.83.77.2"];

impl TwoHosts {
    /// Makes them. Without `ip`, or the right to make namespaces, a case cannot run here
    /// ([`Skip`]).
    pub(crate) fn new() -> Result<Self> {
        Self::make().context(Skip("no network namespaces here"))
    }

    fn make() -> Result<Self> {
        let id = std::process::id();
        let names = [format!("qnic-{id}-w"), format!("qnic-{id}-e")];
        let hosts = TwoHosts { names };
        let [west, east] = &hosts.names;
        ip(&format!("netns add {west}"))?;
        ip(&format!("netns add {east}"))?;
        ip(&format!(
            "link add qnic0 netns {west} type veth peer name qnic0 netns {east}"
        ))?;
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            ip(&format!("-n {name} addr add {address}/24 dev qnic0"))?;
            ip(&format!("-n {name} link set qnic0 up"))?;
        }
        Ok(hosts)
    }

    /// Command in front of one that is to run on a host.
    pub(crate) fn prefix(&self, host: usize) -> Vec<String> {
        let words = ["ip", "netns", "exec", &self.names[host]];
        words.map(str::to_owned).to_vec()
    }

    /// Separates the two, or joins them again.
    pub(crate) fn set_joined(&self, joined: bool) -> Result<()> {
        let state = if joined { "up" } else { "down" };
        ip(&format!("-n {} link set qnic0 {state}", self.names[0]))
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.names {
            // Fails for one that was never made.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.context("run ip (package iproute2)")?;
    ensure!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
