//! Nodes without guests (host mode, X2): a command of a node is a process of this machine, which
//! drives the node's NIC by itself.
//!
//! ```text
//!   GuestProcess ◄── socket pair ──► qnic-exec serve - ◄── pipes ──► command
//!                                    environment of the node
//! ```
//!
//! - Helper and protocol are those of guests, so output, signals and ends are the same. There is
//!   no slot: a node runs any number of commands, of which one at a time opens its NIC.
//! - An Ethernet port is a device of a guest: these nodes have none, whatever the cluster file says.
//! - If this process ends in any way, the helper sees the socket close, and kills its command.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::dirs::ClusterDir;
use crate::manifest::HostPrograms;
use crate::process::MARKER;
use crate::spawn::spawn;
use crate::{ClusterSpec, Error, NodeSpec, Result};

/// A node whose commands are processes of this machine.
#[derive(Clone, Debug)]
pub(crate) struct HostNode {
    helper: PathBuf,
    environment: Vec<(&'static str, OsString)>,
}

impl HostNode {
    pub(crate) fn new(node: &NodeSpec, dir: &ClusterDir, programs: &HostPrograms) -> Self {
        let mut environment = vec![
            (MARKER, dir.path().into()),
            ("PATH", path_behind(&programs.directory)),
        ];
        if node.nic {
            let socket = dir.node(&node.name).nic(None);
            // The NIC keeps some of the node's memory for itself.
            let bytes = (node.memory.0 / 2).to_string();
            environment.push(("QNIC_HOST_SOCKET", socket.into()));
            environment.push(("QNIC_HOST_MEMORY", bytes.into()));
        }
        // The library finds the sockets of NICs with names beside that.
        let first = node.nics.first();
        environment.extend(first.map(|nic| ("QNIC_NIC", OsString::from(&nic.name))));
        Self {
            helper: programs.helper.clone(),
            environment,
        }
    }

    /// Starts the helper of a command. It ends when the socket closes.
    pub(crate) fn start_helper(&self, nonce: u64) -> Result<(UnixStream, Child)> {
        let pair = UnixStream::pair().map_err(Error::io("start", &self.helper));
        let (ours, theirs) = pair?;
        let mut command = Command::new(&self.helper);
        command
            .args(["serve", "-", &nonce.to_string()])
            .envs(self.environment.iter().cloned())
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null());
        let child = spawn(command, false, 0).map_err(Error::io("start", &self.helper))?;
        Ok((ours, child))
    }
}

/// This process's `PATH` behind `first`.
fn path_behind(first: &Path) -> OsString {
    let mut path = OsString::from(first);
    if let Some(own) = std::env::var_os("PATH") {
        path.push(":");
        path.push(own);
    }
    path
}

/// Fails if a cluster needs what only guests have.
pub(crate) fn check(spec: &ClusterSpec) -> Result<()> {
    match spec.remote_memory.first() {
        None => Ok(()),
        Some(memory) => Err(Error::Host(format!(
            "cluster {}: [[remote_memory]] on \"{}\" is a block device, which needs guests: leave \
             --host out",
            spec.name, memory.on
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn a_command_is_told_which_nic_it_has() {
        let test = TestDir::new();
        let text = "name = \"c\"\n[networks.disks]\n\
                    [[node]]\nname = \"a\"\nnics = [{ name = \"main\" }, { name = \"disks\", network = \"disks\" }]\n\
                    [[node]]\nname = \"plain\"\nnic = false\n";
        let spec = ClusterSpec::parse(text, Path::new("c.toml")).unwrap();
        let programs = HostPrograms {
            helper: "/b/qnic-exec".into(),
            directory: "/b".into(),
        };
        let names = |node: &NodeSpec| -> Vec<_> {
            let node = HostNode::new(node, &test.dir, &programs);
            let names = node.environment.into_iter();
            names
                .map(|(name, value)| (name, value.into_string().unwrap()))
                .collect()
        };
        let of_a = names(&spec.nodes[0]);
        let socket = test.dir.node("a").nic(None);
        for expected in [
            ("QNIC_HOST_SOCKET", socket.to_str().unwrap()),
            ("QNIC_HOST_MEMORY", "134217728"),
            ("QNIC_NIC", "main"),
        ] {
            assert!(
                of_a.contains(&(expected.0, expected.1.to_owned())),
                "{of_a:?}"
            );
        }
        assert!(of_a[1].1.starts_with("/b:"), "{of_a:?}");
        assert_eq!(names(&spec.nodes[1]).len(), 2);
    }

    #[test]
    fn what_needs_guests_is_refused() {
        let text = "name = \"c\"\n[[node]]\nname = \"a\"\ncount = 3\n\
                    [[remote_memory]]\non = \"a0\"\nsize = \"8MiB\"\nservers = [\"a1\", \"a2\"]\n";
        let spec = ClusterSpec::parse(text, Path::new("c.toml")).unwrap();
        let error = check(&spec).unwrap_err().to_string();
        assert!(error.contains("[[remote_memory]] on \"a0\""), "{error}");
    }
}
