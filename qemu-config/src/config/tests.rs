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

/// Replaces a part of a good file, and expects an error that contains a text.
pub(super) fn assert_errors(good: &str, cases: &[(&str, &str, &str)]) {
    for (from, to, expected) in cases {
        assert!(good.contains(from), "{from}");
        let error = parse(&good.replacen(from, to, 1)).expect_err(to);
        assert!(error.contains(expected), "{to}: {error}");
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

#[test]
fn errors_are_reported_with_place_key_and_expectation() {
    let table = [
        ("", "c.toml:1:1: missing field `name`"),
        ("name = \"x\"\n", "c.toml:1:1: node: expected 1 to 64 nodes, found 0"),
        ("name = 3\n", "c.toml:1:8: name: invalid type: integer `3`, expected a string"),
        ("name = \"x\nnode", "c.toml:1:10: invalid basic string, expected `\"`"),
        (
            "name = \"x\"\ncolour = 1\n",
            "c.toml:2:1: colour: unknown field `colour`, expected one of `name`, `accel`, `network`, `node`",
        ),
        (
            "name = \"x\"\n[[link]]\n",
            "c.toml:2:3: link: unknown field `link`, expected one of `name`, `accel`, `network`, `node`",
        ),
        (
            "name = \"x\"\naccel = \"hvf\"\n",
            "c.toml:2:9: accel: unknown variant `hvf`, expected one of `auto`, `kvm`, `tcg`",
        ),
        ("name = \"all\"\n", "c.toml:1:8: name: \"all\" has a meaning of its own: choose another name"),
        (
            "name = \"A b\"\n",
            "c.toml:1:8: name: expected 1 to 24 of the characters a-z, 0-9 and \"-\", not \"-\" first, found \"A b\"",
        ),
        ("name = \"x\"\n[[node]]\ncpus = 1\n", "c.toml:2:1: node[0]: missing field `name`"),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\nmemory = \"lots\"\n",
            "c.toml:4:10: node[0].memory: expected a size such as \"256MiB\" or \"1GiB\", found \"lots\"",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\nmemory = \"4MiB\"\n",
            "c.toml:4:10: node[0].memory: expected 128MiB to 64GiB, found 4MiB",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\nmemory = \"262145KiB\"\n",
            "c.toml:4:10: node[0].memory: expected a whole number of MiB, found 262145KiB",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\ncpus = 0\n",
            "c.toml:4:8: node[0].cpus: expected 1 to 64 CPUs, found 0",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\ncpus = -1\n",
            "c.toml:4:8: node[0].cpus: invalid value: integer `-1`, expected u32",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\nkernel = \"7.2\"\n",
            "c.toml:4:10: node[0].kernel: there is no kernel series \"7.2\": use \"stable\" or \"backports\"",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\ncount = 2\n[[node]]\nname = \"a1\"\n",
            "c.toml:6:8: node[1].name: name \"a1\" is used already by node[0].name",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\ncount = 0\n",
            "c.toml:4:9: node[0].count: expected 1 to 64, found 0",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\nfiles = [{ from = \"none\", to = \"/x\" }]\n",
            "c.toml:4:19: node[0].files[0].from: there is no file \"none\"",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\nfiles = [{ from = \"/proc/self/status\", to = \"x\" }]\n",
            "c.toml:4:45: node[0].files[0].to: expected an absolute path in the guest, found \"x\"",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\nfiles = [{ from = \"f\", to = \"/x\", mode = \"rwx\" }]\n",
            "c.toml:4:42: node[0].files[0].mode: expected octal permission bits such as \"755\", found \"rwx\"",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\ncount = 2\nnumber = 3\n",
            "c.toml:5:10: node[0].number: a node with a count cannot have a number",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\nnumber = 1\n[[node]]\nname = \"b\"\n",
            "c.toml:5:1: node[1].number: NIC number 1 is used already by node[0].number",
        ),
        (
            "name = \"x\"\n[[node]]\nname = \"a\"\nfiles = [{ from = \"f\" }]\n",
            "c.toml:4:10: node[0].files[0]: missing field `to`",
        ),
        (
            "name = \"x\"\nname = \"y\"\n",
            "c.toml:2:1: duplicate key",
        ),
    ];
    let mut wrong = Vec::new();
    for (text, expected) in table {
        let found = parse(text).unwrap_err();
        if found != expected {
            wrong.push(format!(
                "{text}\n  expected {expected}\n  found    {found}\n"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_program_gets_the_same_rules() {
    let spec = ClusterSpec::new("x")
        .with(NodeSpec::new("a"))
        .with(NodeSpec::new("a"));
    assert_eq!(
        spec.validate().unwrap_err().to_string(),
        "node[1].name: name \"a\" is used already by node[0].name"
    );
}
