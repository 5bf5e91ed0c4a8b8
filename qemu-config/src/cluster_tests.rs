//! What is asked of QEMU and the device process, which are sockets that answer.

use super::*;
use crate::manifest::{HostPrograms, Mode};
use crate::testing::{Asked, TestDir};

/// A running cluster with the node `a`.
struct Fixture {
    _test: TestDir,
    _owned: (ClusterDir, crate::lock::LockFile),
    cluster: Cluster,
}

impl Fixture {
    fn new() -> Self {
        let test = TestDir::new();
        let owned = test.create(Mode::Attached).unwrap();
        let node = test.node();
        ProcessId::own().unwrap().save(&node.qemu_pid()).unwrap();
        Self {
            cluster: Cluster::open(&test.runtime, "c", None).unwrap(),
            _test: test,
            _owned: owned,
        }
    }

    /// The guest's QEMU, which says that it is `running`.
    fn qemu(&self, running: bool) -> Asked {
        let status = if running { "running" } else { "paused" };
        Asked::qemu(&self.cluster.nodes[0].dir, move |asked| match asked {
            "query-status" => json!({ "status": status, "running": running }),
            "human-monitor-command" => json!(""),
            _ => json!({}),
        })
    }

    /// The device process, whose NIC runs or not.
    fn device(&self, running: bool) -> Asked {
        let control = self.cluster.dir.device(None).control();
        Asked::device(&control, json!({ "expected": running }))
    }
}

/// After an upgrade: the cluster is recognized and refused, whatever its files say, and can be ended.
#[test]
fn a_cluster_of_another_version_is_named_and_only_ended() {
    for (written, said) in [(Some("0.1.9"), "0.1.9"), (None, "(an earlier version)")] {
        let test = TestDir::new();
        let (dir, lock) = test.create(Mode::Detached).unwrap();
        dir.mark_booted().unwrap();
        drop(lock);
        let text = std::fs::read(dir.manifest()).unwrap();
        let mut manifest: Value = serde_json::from_slice(&text).unwrap();
        manifest["added_later"] = json!(1);
        let fields = manifest.as_object_mut().unwrap();
        match written {
            Some(version) => fields.insert("version".to_owned(), json!(version)),
            None => fields.remove("version"),
        };
        std::fs::write(dir.manifest(), manifest.to_string()).unwrap();
        std::fs::write(dir.cluster_file(), "of_another_version = true").unwrap();

        let runtime = &test.runtime;
        assert!(crate::sweep(runtime).unwrap().is_empty());
        for name in [Some("c"), None] {
            let opened = Cluster::find(runtime, name, None).map(drop);
            let text = opened.unwrap_err().to_string();
            assert!(
                text.contains(&format!("booted by qnic {said}, and this is")),
                "{text}"
            );
            assert!(text.contains("qnic down c"), "{text}");
        }
        assert!(crate::overview(runtime).is_empty());
        let others = crate::of_other_versions(runtime);
        assert_eq!(others, [("c".to_owned(), said.to_owned())]);
        crate::down(runtime, "c").unwrap();
        assert!(runtime.names().is_empty());
    }
}

#[test]
fn an_unknown_node_is_neither_paused_nor_resumed() {
    let test = TestDir::new();
    let _owned = test.create(Mode::Attached).unwrap();
    let cluster = Cluster::open(&test.runtime, "c", None).unwrap();
    for result in [cluster.pause("x"), cluster.resume("x")] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::NoSuchNode { .. }), "{error}");
        assert!(error.to_string().contains("it has: a"), "{error}");
    }
}

/// Also one that no driver has started.
#[test]
fn a_pause_is_announced_to_the_nic_and_stops_the_cpus() {
    for running in [true, false] {
        let fixture = Fixture::new();
        let (qemu, device) = (fixture.qemu(true), fixture.device(running));
        fixture.cluster.pause("a").unwrap();
        assert_eq!(device.names(), ["expect_pause"]);
        assert_eq!(qemu.names(), ["stop"]);
    }
}

#[test]
fn a_node_whose_qemu_has_ended_is_told_so() {
    let fixture = Fixture::new();
    let _device = fixture.device(false);
    fs::remove_file(fixture.cluster.nodes[0].dir.qemu_pid()).unwrap();
    let error = fixture.cluster.pause("a").unwrap_err().to_string();
    assert!(error.starts_with("node a: its QEMU has ended"), "{error}");
}

#[test]
fn what_was_paused_before_a_debugger_is_paused_after_it() {
    for running in [true, false] {
        let fixture = Fixture::new();
        let (qemu, device) = (fixture.qemu(running), fixture.device(false));
        let script = fixture
            .cluster
            .debug("a", |debugger| debugger.script.clone());
        let script = fs::read_to_string(script.unwrap()).unwrap();
        assert!(script.contains("target remote "), "{script}");
        let paused = qemu.names().last().is_some_and(|last| last == "stop");
        assert_eq!(
            (paused, device.names().len()),
            (!running, (!running).into())
        );
    }
}

/// The second one would throw out the first.
#[test]
fn a_node_has_one_debugger_at_a_time() {
    let fixture = Fixture::new();
    let (_qemu, _device) = (fixture.qemu(false), fixture.device(false));
    let second = || fixture.cluster.debug("a", |_| ());
    let refused = fixture.cluster.debug("a", |_| second()).unwrap();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("a debugger is attached"), "{refused}");
    second().unwrap();
}

#[test]
fn what_needs_a_guest_is_refused_in_host_mode() {
    let mut fixture = Fixture::new();
    let cluster = &mut fixture.cluster;
    let programs = HostPrograms {
        helper: "/b/qnic-exec".into(),
        directory: "/b".into(),
    };
    cluster.nodes = nodes_of(&cluster.spec, &cluster.dir, Some(&programs), None);
    for refused in [
        cluster.pause("a"),
        cluster.resume("a"),
        cluster.debug("a", |_| ()),
        cluster.renew_nic(&cluster.nodes[0]),
        cluster.guest("a").map(drop),
        cluster.nodes[0].dump("x".as_ref(), |_, _| {}),
    ] {
        let refused = refused.unwrap_err().to_string();
        let says = "node a is a process of this machine (host mode)";
        assert!(refused.starts_with(says), "{refused}");
    }
}

#[test]
fn a_node_without_a_nic_is_told_from_one_that_is_not_there() {
    let mut fixture = Fixture::new();
    let cluster = &mut fixture.cluster;
    cluster.spec.nodes.push(crate::NodeSpec {
        nic: false,
        ..crate::NodeSpec::new("p")
    });
    cluster.nodes = nodes_of(&cluster.spec, &cluster.dir, None, None);
    for pair in [("a", "p"), ("p", "a")] {
        let error = cluster.number_for(pair.0, pair.1).unwrap_err();
        assert_eq!(error.to_string(), "node p: it has no NIC");
    }
    assert!(matches!(cluster.number("x"), Err(Error::NoSuchNode { .. })));
}

#[test]
fn a_dump_that_was_interrupted_is_in_the_way_of_the_next_one() {
    for (status, says) in [
        ("active", "it is writing another dump, 3 of 7 bytes"),
        (
            "none",
            "a.core.part of a dump that was interrupted: remove it",
        ),
    ] {
        let fixture = Fixture::new();
        let node = &fixture.cluster.nodes[0];
        let qemu = Asked::qemu(&node.dir, move |asked| match asked {
            "query-dump" => json!({ "status": status, "completed": 3, "total": 7 }),
            _ => json!({}),
        });
        let file = fixture.cluster.dir.path().join("a.core");
        fs::write(Node::dump_part(&file), "left").unwrap();
        let error = node.dump(&file, |_, _| {}).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!(qemu.names(), ["query-dump"]);
    }
}
