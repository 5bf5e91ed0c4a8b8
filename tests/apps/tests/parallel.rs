//! Data-parallel programs whose ranks are processes of their own, in host mode: each on a node,
//! with the environment that a machine gives (S8).

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use qnic_abi::NodeId;
use qnic_device::{ByteSize, Config, Device, NicSettings};
use tempfile::TempDir;

/// Longer than a peer may be silent, on a machine that is busy.
const FOUND_OUT: Duration = Duration::from_secs(40);

/// A device with a NIC for each rank.
struct Cluster {
    _device: Device,
    directory: TempDir,
    nodes: u16,
}

impl Cluster {
    fn new(nodes: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let nics = (0..nodes).map(|node| {
            let socket = directory.path().join(format!("{node}.sock"));
            NicSettings::new(node.to_string(), NodeId(node), socket, ByteSize::mib(64))
        });
        Cluster {
            _device: Device::start(&Config::new(nics.collect())).unwrap(),
            directory,
            nodes,
        }
    }

    /// Starts a program on each node.
    fn start(&self, interface: &str, arguments: &[&str]) -> Vec<Child> {
        let nodes: Vec<_> = (0..self.nodes).map(|node| node.to_string()).collect();
        let rank = |rank: u16| {
            command(arguments)
                .current_dir(self.directory.path())
                .env(
                    "QNIC_HOST_SOCKET",
                    self.directory.path().join(format!("{rank}.sock")),
                )
                .env("QNIC_HOST_MEMORY", "16MiB")
                .env("QNIC_MACHINE", "lab")
                .env("QNIC_RANK", rank.to_string())
                .env("QNIC_SIZE", self.nodes.to_string())
                .env("QNIC_MACHINE_NODES", nodes.join(","))
                .env("QNIC_MACHINE_INTERFACE", interface)
                .env("QNIC_MACHINE_KEY", "0123456789abcdef")
                .env("QNIC_MACHINE_PORT", "20000")
                .spawn()
                .unwrap()
        };
        (0..self.nodes).map(rank).collect()
    }

    /// Runs a program on each node; returns what rank 0 reports.
    fn run(&self, interface: &str, arguments: &[&str]) -> serde_json::Value {
        let children = self.start(interface, arguments);
        let outputs = children
            .into_iter()
            .map(|child| child.wait_with_output().unwrap());
        let said: Vec<_> = outputs.map(succeeded).collect();
        report(&said[0])
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qnic-app"));
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn succeeded(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The last line.
fn report(said: &str) -> serde_json::Value {
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

/// A run by each interface computes what a serial one computes; the programs compare it, too.
fn same_as_serial(program: &str, more: &[&str]) -> [serde_json::Value; 3] {
    let arguments = [&[program], more].concat();
    let alone = [&arguments[..], &["--serial"]].concat();
    let serial = report(&succeeded(command(&alone).output().unwrap()));
    let cluster = Cluster::new(4);
    let [qnic, pool] = ["qnic", "pool"].map(|interface| {
        let report = cluster.run(interface, &arguments);
        assert_eq!(
            (&report["ranks"], &report["interface"]),
            (&4.into(), &interface.into())
        );
        assert!(report["difference"].is_f64(), "{report}");
        report
    });
    assert_eq!(qnic["crc32"], pool["crc32"], "{qnic} {pool}");
    [serial, qnic, pool]
}

#[test]
fn heat_of_four_ranks_is_the_serial_one_with_a_picture() {
    let size = ["--rows", "61", "--columns", "40", "--steps", "150"];
    let [serial, qnic, _] = same_as_serial("heat", &size);
    assert_eq!(serial["crc32"], qnic["crc32"]);
    let cluster = Cluster::new(2);
    let picture = cluster.directory.path().join("heat.png");
    let size = ["heat", "--rows", "30", "--columns", "20"];
    let arguments = [&size[..], &["--picture", "heat.png"]].concat();
    cluster.run("qnic", &arguments);
    let file = BufReader::new(std::fs::File::open(picture).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((frame.width, frame.height), (20, 30));
    let brightness = |row: usize| -> u32 {
        let pixel = &pixels[(row * 20 + 10) * 3..][..3];
        pixel.iter().copied().map(u32::from).sum()
    };
    assert!(brightness(0) > brightness(29));
}

#[test]
fn life_of_four_ranks_is_the_serial_one() {
    let size = ["--rows", "50", "--columns", "33", "--generations", "100"];
    let [serial, qnic, _] = same_as_serial("game-of-life", &size);
    assert_eq!(serial["crc32"], qnic["crc32"]);
    assert!(serial["value"].as_f64().unwrap() > 0.0, "{serial}");
}

#[test]
fn the_solver_of_four_ranks_agrees_with_the_serial_one() {
    let size = ["--rows", "40", "--columns", "37"];
    let [serial, qnic, _] = same_as_serial("conjugate-gradient", &size);
    for report in [serial, qnic] {
        assert!(report["value"].as_f64().unwrap() <= 1e-10, "{report}");
    }
}

/// Starts the heat without an end, and waits until all ranks have connected.
fn start_endless(cluster: &Cluster, interface: &str, more: &[&str]) -> Vec<Child> {
    let arguments = ["heat", "--steps", "100000000", "--no-check"];
    let mut children = cluster.start(interface, &[&arguments, more].concat());
    for child in &mut children {
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert!(line.contains("connected"), "{line}");
    }
    children
}

/// What a rank says when it fails.
fn failed(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    errors
}

/// A rank is killed: each other one ends with its name, within a bounded time.
fn a_killed_rank_is_named(interface: &str) {
    let cluster = Cluster::new(4);
    let mut children = start_endless(&cluster, interface, &[]);
    let start = Instant::now();
    let mut victim = children.remove(2);
    victim.kill().unwrap();
    victim.wait().unwrap();
    for child in children {
        let errors = failed(child);
        assert!(errors.contains("rank 2 (node 2) has ended"), "{errors}");
    }
    assert!(start.elapsed() < FOUND_OUT, "{:?}", start.elapsed());
}

#[test]
fn a_killed_rank_is_named_by_messages() {
    a_killed_rank_is_named("qnic");
}

#[test]
fn a_killed_rank_is_named_by_streams() {
    a_killed_rank_is_named("pool");
}

/// A rank that is stopped has not died: the time limit ends the wait for it.
#[test]
fn a_rank_that_hangs_is_named_by_either_interface() {
    for interface in ["qnic", "pool"] {
        let cluster = Cluster::new(2);
        let mut children = start_endless(&cluster, interface, &["--timeout", "3"]);
        let start = Instant::now();
        let mut victim = children.remove(1);
        let pid = rustix::process::Pid::from_child(&victim);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let errors = failed(children.remove(0));
        victim.kill().unwrap();
        victim.wait().unwrap();
        assert!(errors.contains("rank 1 (node 1) took no part"), "{errors}");
        assert!(start.elapsed() < FOUND_OUT, "{:?}", start.elapsed());
    }
}

#[test]
fn a_program_outside_of_a_machine_says_how_to_start_it() {
    let output = command(&["heat"])
        .env_remove("QNIC_MACHINE")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("cargo qnic machine run"), "{errors}");
}
