//! Cluster files, right and wrong.

use std::path::Path;

use qnic_config::ByteSize;
use qnic_images::KernelSeries;

use super::{AccelChoice, ClusterSpec, NodeSpec};

/// The first line of an error: the second shows the line of the file.
pub(super) fn parse(text: &str) -> Result<ClusterSpec, String> {
    ClusterSpec::parse(text, Path::new("c.toml")).map_err(|error| {
        let message = error.to_string();
        message.lines().next().unwrap_or_default().to_owned()
    })
}

/// Each row, `from => to | error` with `\n` for a line end, replaces a part of a good file,
/// and expects an error that contains a text.
pub(super) fn assert_errors(good: &str, table: &str) {
    for row in table.trim().lines() {
        let (change, expected) = row.split_once('|').unwrap();
        let (from, to) = change.split_once("=>").unwrap();
        let [from, to] = [from, to].map(|text| text.trim().replace("\\n", "\n"));
        assert!(good.contains(&from), "{row}");
        let error = parse(&good.replacen(&from, &to, 1)).expect_err(row);
        assert!(error.contains(expected.trim()), "{row}: {error}");
    }
}

#[test]
fn two_names_are_enough() {
    let spec = parse("name = \"pair\"\n[[node]]\nname = \"a\"\n").unwrap();
    assert_eq!(spec, ClusterSpec::new("pair").with(NodeSpec::new("a")));
    assert_eq!(spec.accel, AccelChoice::Auto);
    assert_eq!(spec.nodes[0].memory, ByteSize::mib(256));
}

#[test]
fn every_key_is_understood_and_printed_again() {
    let text = r#"
name = "all-keys"
accel = "tcg"

[device]
metrics = "0.0.0.0:9750"
metrics_anywhere = true
engines = 4

[[node]]
name = "a"
memory = "1GiB"
cpus = 2
kernel = "backports"
nic = false
swap = "512MiB"
disk = "2GiB"
qemu_args = ["-device", "virtio-rng-pci"]

[[node.files]]
from = "/dev/../proc/self/status"
to = "/usr/bin/x"
mode = "755"

[[node]]
name = "n"
count = 3
"#;
    let spec = parse(text).unwrap();
    let names: Vec<_> = spec.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["a", "n0", "n1", "n2"]);
    assert_eq!(spec.nodes[0].kernel, KernelSeries::Backports);
    assert_eq!(spec.nodes[0].files[0].mode, 0o755);
    assert!(spec.has_nics());
    assert_eq!(spec.total_memory(), ByteSize::mib(1024 + 3 * 256));
    assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
}

const NODE: &str = "name = \"x\"\n[[node]]\nname = \"a\"\n";

#[test]
fn errors_are_reported_with_location_key_and_expectation() {
    // NODE is a file with a node; a line end is `\n`.
    let table = r#"
         | 1:1: missing field `name`
        [network]\nseed = 1\n | 1:1: missing field `name`
        name = "x"\n | 1:1: node: expected 1 to 64 nodes, found 0
        name = 3\n | 1:8: name: invalid type: integer `3`, expected a string
        name = "x\nnode | 1:10: invalid basic string, expected `"`
        name = "x"\ncolour = 1\n | 2:1: colour: unknown field `colour`, expected one of `name`, `accel`, `driver`, `ethernet`, `mpi`, `verbs`, `device`, `network`, `networks`, `node`, `remote_memory`
        name = "x"\n[[link]]\n | 2:3: link: unknown field `link`, expected one of `name`, `accel`, `driver`, `ethernet`, `mpi`, `verbs`, `device`, `network`, `networks`, `node`, `remote_memory`
        name = "x"\naccel = "hvf"\n | 2:9: accel: unknown variant `hvf`, expected one of `auto`, `kvm`, `tcg`
        name = "all"\n | 1:8: name: "all" has a meaning of its own: choose another name
        name = "A b"\n | 1:8: name: expected 1 to 24 of the characters a-z, 0-9 and "-", not "-" first, found "A b"
        name = "x"\n[[node]]\ncpus = 1\n | 2:1: node[0]: missing field `name`
        NODE memory = "lots"\n | 4:10: node[0].memory: expected a size such as "256MiB" or "1GiB", found "lots"
        NODE memory = "4MiB"\n | 4:10: node[0].memory: expected 128MiB to 64GiB, found 4MiB
        NODE share = "/nowhere"\n | 4:9: node[0].share.path: there is no directory "/nowhere"
        NODE share = ""\n | 4:9: node[0].share.path: expected a directory, found ""
        NODE share = { path = "/", at = "/usr" }\n | 4:28: node[0].share.at: "/usr" has what the guest itself needs: choose another one
        NODE share = { path = "/", at = "here" }\n | 4:28: node[0].share.at: expected an absolute path in the guest without blanks, found "here"
        NODE share = { path = "/", to = "/x" }\n | 4:23: node[0].share.to: unknown field `to`, expected one of `path`, `at`, `writable`
        NODE share = 1\n | 4:9: node[0].share: invalid type: integer `1`, expected a directory, or { path, at, writable }
        NODE memory_max = "128MiB"\n | 4:14: node[0].memory_max: expected memory (256MiB) and a multiple of 128MiB up to 64GiB, found 128MiB
        NODE memory_max = "300MiB"\n | 4:14: node[0].memory_max: expected memory (256MiB) and a multiple of 128MiB up to 64GiB, found 300MiB
        NODE memory = "262145KiB"\n | 4:10: node[0].memory: expected a whole number of MiB, found 262145KiB
        NODE cpus = 0\n | 4:8: node[0].cpus: expected 1 to 64 CPUs, found 0
        NODE cpus = -1\n | 4:8: node[0].cpus: invalid value: integer `-1`, expected u32
        NODE kernel = "7.2"\n | 4:10: node[0].kernel: there is no kernel series "7.2": use "stable", "backports" or "generic"
        NODE count = 2\n[[node]]\nname = "a1"\n | 6:8: node[1].name: name "a1" is used already by node[0].name
        NODE count = 0\n | 4:9: node[0].count: expected 1 to 64, found 0
        NODE files = [{ from = "/none", to = "/x" }]\n | 4:19: node[0].files[0].from: there is no file "/none"
        NODE files = [{ from = "/proc/self/status", to = "x" }]\n | 4:45: node[0].files[0].to: expected an absolute path in the guest, found "x"
        NODE files = [{ from = "f", to = "/x", mode = "rwx" }]\n | 4:42: node[0].files[0].mode: expected octal permission bits such as "755", found "rwx"
        NODE count = 2\nnumber = 3\n | 5:10: node[0].number: a node with a count cannot have a number
        NODE number = 1\n[[node]]\nname = "b"\n | 5:1: node[1].number: NIC number 1 is used already by node[0].number
        NODE files = [{ from = "f" }]\n | 4:10: node[0].files[0]: missing field `to`
        name = "x"\nname = "y"\n | 2:1: duplicate key
    "#;
    let mut wrong = Vec::new();
    for row in table.trim().lines() {
        let (text, expected) = row.split_once('|').unwrap();
        let text = text.trim().replace("NODE ", NODE).replace("\\n", "\n");
        let (found, expected) = (parse(&text).unwrap_err(), expected.trim());
        if found != format!("c.toml:{expected}") {
            wrong.push(format!(
                "{text}\n  expected {expected}\n  found    {found}\n"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_program_gets_the_same_rules() {
    let node = NodeSpec::new("a");
    let spec = ClusterSpec::new("x").with(node.clone()).with(node);
    let error = spec.validate().unwrap_err().to_string();
    let expected = "node[1].name: name \"a\" is used already by node[0].name";
    assert_eq!(error, expected);
}

#[test]
fn several_engines_serve_all_nodes_in_one_process() {
    let base = NODE.replace("[[node]]", "[device]\nengines = 2\n[[node]]");
    assert!(!parse(&base).unwrap().device.engines.is_auto());
    let text = parse(&base).unwrap().to_toml().unwrap();
    assert!(text.contains("[device]\nengines = 2\n"), "{text}");
    assert_errors(
        &base,
        r#"
        engines = 2 => engines = 0 | 3:11: device.engines: invalid value: integer `0`, expected "auto", or a number of engines from 1 to 16
        engines = 2 => engines = 17 | 3:11: device.engines: invalid value
        engines = 2 => engines = "two" | 3:11: device.engines: invalid value: string "two"
        engines = 2 => engines = 2\n[[network.process]]\nname = "l"\nnodes = ["a"]\n[[network.process]]\nname = "r"\nnodes = [] | 3:11: device.engines: expected 1 or "auto" beside [[network.process]]
        "#,
    );
}

#[test]
fn metrics_leave_the_machine_only_if_that_is_said() {
    let base = NODE.replace(
        "[[node]]",
        "[device]\nmetrics = \"127.0.0.1:9750\"\n[[node]]",
    );
    assert_eq!(
        parse(&base).unwrap().device.metrics_of(2),
        Some("127.0.0.1:9752".parse().unwrap())
    );
    assert_errors(
        &base,
        r#"
        127.0.0.1 => 10.0.0.1 | 3:11: device.metrics: 10.0.0.1 is not a loopback address
        9750 => 0 | 3:11: device.metrics: expected a port
        127.0.0.1:9750 => 9750 | 3:11: device.metrics: invalid socket address
        metrics = => metric = | unknown field `metric`
        "#,
    );
    let two = base.replace(
        "9750\"",
        "65535\"\n[[network.process]]\nname = \"l\"\nnodes = [\"a\"]\n\
         [[network.process]]\nname = \"r\"\nnodes = [\"b\"]",
    );
    let error = parse(&format!("{two}[[node]]\nname = \"b\"\n")).unwrap_err();
    assert!(error.contains("no ports are left for 2"), "{error}");
}
