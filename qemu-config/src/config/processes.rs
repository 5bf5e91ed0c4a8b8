//! The part of a cluster file that divides its NICs among several device processes of
//! this machine, joined by shared memory.
//!
//! ```toml
//! [[network.process]]                # optional; without it, one process has all NICs
//! name = "left"
//! nodes = ["a", "b"]
//! ```

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::error::Mistake;
use super::key::KeyPath;
use super::spec::{ClusterSpec, NodeSpec};
use super::validate::check_name;

/// A device process of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSpec {
    /// Its name.
    pub name: String,
    /// Names of the nodes whose NICs it has.
    pub nodes: Vec<String>,
}

impl ClusterSpec {
    fn processes(&self) -> &[ProcessSpec] {
        let network = self.network.as_ref();
        network.map_or(&[], |network| &network.processes)
    }

    /// The device processes that run here, by their names; the only one has none.
    pub(crate) fn device_processes(&self) -> Vec<Option<&str>> {
        match self.processes() {
            [] if self.has_nics() => vec![None],
            [] => Vec::new(),
            several => several.iter().map(|one| Some(one.name.as_str())).collect(),
        }
    }

    /// The device process that has the NIC of a node.
    pub(crate) fn process_of(&self, node: &str) -> Option<&str> {
        let has = |process: &&ProcessSpec| process.nodes.iter().any(|name| name == node);
        let process = self.processes().iter().find(has)?;
        Some(&process.name)
    }

    /// The nodes whose NICs a device process has, with the numbers of these.
    pub(crate) fn nics_of<'a>(
        &'a self,
        process: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a NodeSpec, u16)> {
        let nics = self.numbered().filter(|(node, _)| node.nic);
        nics.filter(move |(node, _)| self.process_of(&node.name) == process)
    }
}

/// Checks the processes of `spec`; `nodes` are all nodes with a NIC.
pub(super) fn check(
    spec: &ClusterSpec,
    nodes: &HashSet<&str>,
    network: &KeyPath,
) -> Result<(), Mistake> {
    let processes = spec.processes();
    if processes.is_empty() {
        return Ok(());
    }
    let top = network.key("process");
    let hosts = spec.network.iter().map(|network| network.hosts.len());
    if hosts.sum::<usize>() > 0 {
        let message = "a cluster has either hosts or several processes on one host";
        return Err(Mistake::new(top, message));
    }
    let (mut names, mut placed) = (HashSet::new(), HashSet::new());
    for (index, process) in processes.iter().enumerate() {
        let key = top.index(index);
        check_name(&process.name, &key.key("name"))?;
        if !names.insert(&process.name) {
            let message = format!("there is already a process \"{}\"", process.name);
            return Err(Mistake::new(key.key("name"), message));
        }
        if process.nodes.is_empty() {
            let message = "expected at least one node: a device process has a NIC";
            return Err(Mistake::new(key.key("nodes"), message));
        }
        for (place, node) in process.nodes.iter().enumerate() {
            let key = key.key("nodes").index(place);
            if !nodes.contains(node.as_str()) {
                let message = format!("there is no node \"{node}\" with a NIC");
                return Err(Mistake::new(key, message));
            }
            if !placed.insert(node.as_str()) {
                let message = format!("\"{node}\" is in a process already");
                return Err(Mistake::new(key, message));
            }
        }
    }
    let missing = nodes.iter().filter(|node| !placed.contains(**node)).min();
    match missing {
        Some(node) => {
            let message = format!("node \"{node}\" is in no process");
            Err(Mistake::new(top, message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const FILE: &str = r#"
name = "x"
[[network.process]]
name = "left"
nodes = ["a0", "a1"]
[[network.process]]
name = "right"
nodes = ["a2"]
[[node]]
name = "a"
count = 3
[[node]]
name = "plain"
nic = false
"#;

    fn parse(text: &str) -> Result<ClusterSpec, String> {
        let file = Path::new("/c/c.toml");
        ClusterSpec::parse(text, file).map_err(|error| error.to_string())
    }

    #[test]
    fn each_process_has_its_nics() {
        let spec = parse(FILE).unwrap();
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        assert_eq!(spec.device_processes(), [Some("left"), Some("right")]);
        let nics = |process| {
            let nics = spec.nics_of(process);
            nics.map(|(node, number)| (node.name.clone(), number))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            nics(Some("left")),
            [("a0".to_owned(), 0), ("a1".to_owned(), 1)]
        );
        assert_eq!(nics(Some("right")), [("a2".to_owned(), 2)]);
        assert_eq!(spec.process_of("a2"), Some("right"));
        assert_eq!(spec.process_of("plain"), None);
    }

    #[test]
    fn without_processes_there_is_one_and_without_nics_none() {
        let one = ClusterSpec::new("c").with(NodeSpec::new("a"));
        assert_eq!(one.device_processes(), [None]);
        assert_eq!(one.nics_of(None).count(), 1);
        let plain = NodeSpec {
            nic: false,
            ..NodeSpec::new("a")
        };
        let none = ClusterSpec::new("c").with(plain);
        assert!(none.device_processes().is_empty());
    }

    #[test]
    fn mistakes_are_reported_with_place_and_key() {
        let cases = [
            ("\"right\"", "\"left\"", "network.process[1].name: there is already a process"),
            ("\"right\"", "\"Right\"", "network.process[1].name: expected 1 to"),
            ("[\"a2\"]", "[\"a1\"]", "network.process[1].nodes[0]: \"a1\" is in a process already"),
            ("[\"a2\"]", "[\"plain\"]", "network.process[1].nodes[0]: there is no node"),
            ("[\"a2\"]", "[]", "network.process[1].nodes: expected at least one"),
            ("\"a0\", \"a1\"", "\"a0\"", "network.process: node \"a1\" is in no process"),
            (
                "[[node]]\nname = \"a\"",
                "[[network.host]]\nname = \"h\"\naddress = \"[::1]:1\"\nnodes = [\"a0\", \"a1\", \"a2\"]\n[[node]]\nname = \"a\"",
                "network.process: a cluster has either hosts",
            ),
        ];
        for (from, to, expected) in cases {
            let error = parse(&FILE.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(expected), "{to}: {error}");
        }
    }
}
