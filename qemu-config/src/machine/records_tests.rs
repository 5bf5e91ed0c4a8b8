use super::*;
use crate::manifest::Mode;
use crate::testing::TestDir;
use crate::NodeSpec;

/// Machines of a cluster with nodes `a`, `b` and `c`, and `bare` without a NIC.
struct Fixture {
    machines: Machines,
    test: TestDir,
}

impl Fixture {
    fn new() -> Self {
        let test = TestDir::new();
        drop(test.create(Mode::Detached).unwrap());
        let bare = NodeSpec {
            nic: false,
            ..NodeSpec::new("bare")
        };
        let spec = TestDir::spec().with(NodeSpec::new("b"));
        let spec = spec.with(NodeSpec::new("c")).with(bare);
        let machines = Machines::new(&test.dir, &spec);
        Self { machines, test }
    }

    fn create(&self, name: &str, nodes: &[&str], exclusive: bool) -> Result<(), String> {
        let machine = Machine {
            name: name.to_owned(),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            nic: None,
            interface: Interface::Pool,
            exclusive,
        };
        let made = self.machines.create(machine);
        made.map_err(|error| error.to_string())
    }

    fn names(&self) -> Vec<String> {
        let all = self.machines.list().unwrap().into_iter();
        all.map(|one| one.machine.name).collect()
    }
}

#[test]
fn machines_are_made_listed_and_removed() {
    let cluster = Fixture::new();
    assert!(cluster.machines.list().unwrap().is_empty());
    cluster.create("lab", &["b", "a"], false).unwrap();
    cluster.create("other", &["a"], false).unwrap();
    let json = serde_json::to_value(&cluster.machines.list().unwrap()[0]).unwrap();
    let expected = serde_json::json!({
        "name": "lab", "nodes": ["b", "a"], "interface": "pool", "exclusive": false, "runs": []
    });
    assert_eq!(json, expected);
    cluster.machines.remove("lab").unwrap();
    assert_eq!(cluster.names(), ["other"]);
    let error = cluster.machines.remove("lab").unwrap_err().to_string();
    assert!(
        error.contains("no machine \"lab\"") && error.contains("has other"),
        "{error}"
    );
}

/// A machine chooses its NICs by their name (S7).
#[test]
fn a_machine_has_nics_of_one_name_on_one_network() {
    let text = "name = \"c\"\n[networks.disks]\n\
                [[node]]\nname = \"a\"\nnics = [{ name = \"main\" }, { name = \"side\", network = \"disks\" }]\n\
                [[node]]\nname = \"b\"\nnics = [{ name = \"side\", network = \"disks\" }]\n\
                [[node]]\nname = \"c\"\n";
    let cluster = Fixture::new();
    let spec = ClusterSpec::parse(text, std::path::Path::new("c.toml")).unwrap();
    let machines = Machines::new(&cluster.test.dir, &spec);
    let create = |name: &str, nodes: &[&str], nic: Option<&str>| {
        let made = machines.create(Machine {
            name: name.to_owned(),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            nic: nic.map(str::to_owned),
            interface: Interface::Qnic,
            exclusive: false,
        });
        made.map_err(|error| error.to_string())
    };
    create("lab", &["a", "b"], Some("side")).unwrap();
    create("first", &["a", "c"], None).unwrap();
    let json = serde_json::to_value(machines.list().unwrap()).unwrap();
    assert_eq!(
        (&json[0]["nic"], json[1].get("nic")),
        (&"side".into(), None)
    );
    for (nodes, nic, expected) in [
        (
            ["a", "b"],
            Some("disk"),
            "node a has no NIC \"disk\": it has main, side",
        ),
        (
            ["a", "c"],
            Some("side"),
            "node c has no NIC \"side\": its NIC has no name",
        ),
        (
            ["a", "b"],
            None,
            "the NICs of a and b are on different networks: name others with --nic",
        ),
    ] {
        assert_eq!(create("x", &nodes, nic).unwrap_err(), expected);
    }
}

#[test]
fn an_exclusive_node_is_refused_with_the_name_of_its_holder() {
    let cluster = Fixture::new();
    cluster.create("mine", &["a", "b"], true).unwrap();
    let error = cluster.create("late", &["c", "b"], false).unwrap_err();
    assert_eq!(error, "node b is held by machine \"mine\" exclusively");
    cluster.create("beside", &["c"], false).unwrap();
    let error = cluster.create("late", &["c"], true).unwrap_err();
    assert_eq!(
        error,
        "node c cannot be exclusive: machine \"beside\" uses it"
    );
    cluster.machines.remove("mine").unwrap();
    cluster.create("late", &["b"], true).unwrap();
}

#[test]
fn what_makes_no_machine_is_refused_and_leaves_no_record() {
    let cluster = Fixture::new();
    for (name, nodes, part) in [
        ("lab", &[][..], "at least one node"),
        ("lab", &["a", "b", "a"], "node a is named twice"),
        ("lab", &["x"], "no node \"x\""),
        ("lab", &["bare"], "node bare has no NIC"),
        ("Lab", &["a"], "found \"Lab\""),
        ("../x", &["a"], "found \"../x\""),
    ] {
        let error = cluster.create(name, nodes, false).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    assert!(cluster.names().is_empty());
    cluster.create("lab", &["a"], false).unwrap();
    let error = cluster.create("lab", &["b"], false).unwrap_err();
    assert!(error.contains("exists already"), "{error}");
    for number in 1..MAX_MACHINES {
        cluster
            .create(&format!("m{number}"), &["a"], false)
            .unwrap();
    }
    let error = cluster.create("more", &["a"], false).unwrap_err();
    assert!(error.contains("64 machines"), "{error}");
}

#[test]
fn machines_that_are_made_at_once_are_all_there() {
    let cluster = Fixture::new();
    std::thread::scope(|scope| {
        for number in 0..16 {
            let cluster = &cluster;
            scope.spawn(move || {
                cluster
                    .create(&format!("m{number}"), &["a"], false)
                    .unwrap()
            });
        }
    });
    assert_eq!(cluster.names().len(), 16);
}

#[test]
fn a_machine_that_runs_a_program_is_not_removed() {
    let cluster = Fixture::new();
    cluster.create("lab", &["a"], false).unwrap();
    cluster.create("idle", &["a"], false).unwrap();
    let (machine, run) = cluster.machines.begin_run("lab").unwrap();
    assert_eq!(
        (&*machine.name, machine.nodes),
        ("lab", vec!["a".to_owned()])
    );
    let runs: Vec<_> = cluster.machines.list().unwrap();
    assert_eq!(
        (&runs[0].runs[..], runs[1].runs.len()),
        (&[std::process::id()][..], 0)
    );
    let error = cluster.machines.remove("lab").unwrap_err().to_string();
    assert!(error.contains("runs a program"), "{error}");
    cluster.machines.remove("idle").unwrap();
    drop(run);
    cluster.machines.remove("lab").unwrap();
    let error = cluster.machines.begin_run("lab").unwrap_err().to_string();
    assert!(error.contains("the cluster has none"), "{error}");
}

#[test]
fn records_go_with_their_cluster_and_damaged_ones_are_named() {
    let cluster = Fixture::new();
    cluster.create("lab", &["a"], false).unwrap();
    std::fs::write(cluster.test.dir.machines(), "[{\"name\": 7}]").unwrap();
    let error = cluster.machines.list().unwrap_err().to_string();
    assert!(error.contains("machines.json"), "{error}");
    crate::down(&cluster.test.runtime, "c").unwrap();
    assert!(cluster.machines.list().is_err());
    assert!(!cluster.test.dir.path().exists());
}

#[test]
fn interfaces_have_names() {
    for interface in [Interface::Qnic, Interface::Pool] {
        assert_eq!(interface.name().parse(), Ok(interface));
    }
    let error = "tcp".parse::<Interface>().unwrap_err().to_string();
    assert_eq!(error, "there is no interface \"tcp\": qnic or pool");
}
