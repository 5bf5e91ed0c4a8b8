//! Makes the block devices that the cluster file puts into the memory of other nodes (H9): all
//! servers give memory, then each node attaches its devices, one after the other.
//!
//! ```text
//!   guests ready ─▶ qnic-rmem serve, on all servers at once ─▶ qnic-rmem attach, table by table
//! ```
//! A guest that boots again has neither: what it gave and what it had is gone with its memory.

use std::time::Duration;

use crate::boot_options::BootOptions;
use crate::config::{RemoteMemorySpec, Served};
use crate::guest_command::{GuestCommand, GuestOutput};
use crate::node::Node;
use crate::programs::REMOTE_MEMORY_PATH;
use crate::{ClusterSpec, Error, Result};

/// Makes the devices of `spec`, whose guests are ready. Each step may take as long as a boot.
pub(crate) fn set_up(spec: &ClusterSpec, nodes: &[Node], options: &BootOptions) -> Result<()> {
    let limit = options.ready_limit;
    let mut serving = Vec::new();
    for node in nodes {
        if let Some(served) = spec.served().get(node.name()) {
            let gives = format!("gives {} of its memory", served.size);
            options.progress.node(node.name(), &gives);
            serving.push((node, gives, node.spawn(&serve(served))?));
        }
    }
    for (node, gives, process) in serving {
        said_by(node, &gives, &process.wait(Some(limit))?)?;
    }
    for (device, memory) in spec.remote_memory() {
        let Some(node) = nodes.iter().find(|node| node.name() == memory.on) else {
            continue;
        };
        attach(spec, (node, &device), memory, limit)?;
        options
            .progress
            .node(node.name(), &memory.describe(&device));
    }
    Ok(())
}

/// Attaches a device, which has this name if the tables of its node come in their order.
fn attach(
    spec: &ClusterSpec,
    (node, device): (&Node, &str),
    memory: &RemoteMemorySpec,
    limit: Duration,
) -> Result<()> {
    let numbers = memory.servers.iter();
    let numbers = numbers.filter_map(|server| spec.node_number(server));
    let servers: Vec<_> = numbers.map(|number| number.to_string()).collect();
    let command = tool("attach", memory.size.0, memory.key.as_deref())
        .args(["--replicas", &memory.replicas.to_string()])
        .args(["--servers", &servers.join(",")])
        .args(memory.thin.then_some("--thin"));
    let attaches = memory.describe(device);
    let said = said_by(node, &attaches, &node.run(&command, limit)?)?;
    match said.trim() == device {
        true => Ok(()),
        false => Err(unable(node, &attaches, &format!("it became {said}"))),
    }
}

fn serve(served: &Served) -> GuestCommand {
    let clients = served.clients.to_string();
    let command = tool("serve", served.size.0, served.key.as_deref()).args(["--clients", &clients]);
    served.lease.iter().fold(command, |command, lease| {
        let seconds = lease.get() / 1_000_000_000;
        command.args(["--lease", &seconds.to_string()])
    })
}

/// The tool, with a size and a key.
fn tool(action: &str, bytes: u64, key: Option<&str>) -> GuestCommand {
    let size = format!("{}KiB", bytes >> 10);
    let command = GuestCommand::new(REMOTE_MEMORY_PATH);
    let command = command.args([action, "--size", &size]);
    key.iter()
        .fold(command, |command, key| command.args(["--key", key]))
}

/// What a command that ended well has printed.
fn said_by(node: &Node, doing: &str, output: &GuestOutput) -> Result<String> {
    match output.exit.success() {
        true => Ok(output.text()),
        false => Err(unable(
            node,
            doing,
            &String::from_utf8_lossy(&output.stderr),
        )),
    }
}

fn unable(node: &Node, doing: &str, why: &str) -> Error {
    let why = why.trim().trim_start_matches("Error: ");
    Error::Failed {
        subject: format!("node {}", node.name()),
        what: format!("remote memory ({doing}): {why}"),
        log: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteSize;

    fn words(command: &GuestCommand) -> String {
        let words = command.start.argv.iter();
        let words: Vec<_> = words.map(|word| String::from_utf8_lossy(word)).collect();
        words.join(" ")
    }

    #[test]
    fn servers_are_told_what_they_give() {
        let mut served = Served {
            size: ByteSize::mib(3),
            clients: 2,
            lease: None,
            key: None,
        };
        let path = REMOTE_MEMORY_PATH;
        let expected = format!("{path} serve --size 3072KiB --clients 2");
        assert_eq!(words(&serve(&served)), expected);
        served.key = Some("0a".into());
        served.lease = Some("2m".parse().unwrap());
        let expected = format!("{path} serve --size 3072KiB --key 0a --clients 2 --lease 120");
        assert_eq!(words(&serve(&served)), expected);
    }
}
