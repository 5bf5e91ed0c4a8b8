//! Two stock-kernel guests without NICs, from boot to teardown. They take half a
//! minute, so `cargo test` runs them only when asked for by name:
//! `cargo test -p qnic-cluster --test plain_guests`. `cargo qnic test` does.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use qnic_cluster::{
    qmp, BootOptions, ByteSize, Cluster, ClusterSpec, Error, GuestCommand, GuestEvent, GuestExit,
    Mode, Node, NodeSpec, NodeState, OnOff, Runtime,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Options to boot in `dir`.
fn options(dir: &tempfile::TempDir, mode: Mode) -> BootOptions {
    let mut options = BootOptions::new(mode).unwrap();
    options.runtime = Runtime::at(dir.path().join("run"), dir.path().join("disks")).unwrap();
    options
}

fn plain(name: &str) -> NodeSpec {
    NodeSpec {
        nic: false,
        ..NodeSpec::new(name)
    }
}

fn pair() -> ClusterSpec {
    let mut first = plain("a");
    first.swap = Some(ByteSize::mib(64));
    without_ports(ClusterSpec::new("pair").with(first).with(plain("b")))
}

/// These guests need no device process.
fn without_ports(mut spec: ClusterSpec) -> ClusterSpec {
    spec.ethernet = OnOff::Off;
    spec
}

fn text_of(node: &Node, script: &str) -> String {
    let output = node.run(&GuestCommand::shell(script), LIMIT).unwrap();
    assert!(output.exit.success(), "{script}: {output:?}");
    output.text().trim().to_owned()
}

#[test]
fn two_guests_run_commands_and_files_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir, Mode::Attached);
    let started = Instant::now();
    let cluster = Cluster::boot(&pair(), &options).unwrap();
    let seconds = started.elapsed().as_secs_f32();
    println!("two guests ready after {seconds:.1} s");
    let (a, b) = (cluster.node("a").unwrap(), cluster.node("b").unwrap());
    commands(a);
    assert_eq!(text_of(b, "hostname"), "b");
    assert_eq!(text_of(a, "cat /sys/block/*/serial"), "swap");
    files(a);
    many_at_once(b);
    machine(a);
    let qemus = [a.qemu().unwrap(), b.qemu().unwrap()];
    cluster.end().unwrap();
    assert!(qemus.iter().all(|qemu| !qemu.is_alive()));
    assert!(options.runtime.names().is_empty());
}

fn commands(node: &Node) {
    let run = |command: GuestCommand| node.run(&command, LIMIT);
    let output = run(GuestCommand::shell("echo out; echo err >&2; exit 7")).unwrap();
    assert_eq!(
        (&output.stdout[..], &output.stderr[..], output.exit),
        (&b"out\n"[..], &b"err\n"[..], GuestExit::Code(7))
    );
    let started = Instant::now();
    for _ in 0..10 {
        run(GuestCommand::new("true")).unwrap();
    }
    println!("true takes {} ms", started.elapsed().as_millis() / 10);
    let output = run(GuestCommand::shell("kill -9 $$")).unwrap();
    assert_eq!(output.exit, GuestExit::Signal(9));
    assert!(matches!(
        run(GuestCommand::new("/none")),
        Err(Error::NotStarted { errno: 2, .. })
    ));
    let endless = GuestCommand::new("sleep").arg("1000");
    let late = node.run(&endless, Duration::from_secs(1));
    assert!(matches!(late, Err(Error::Timeout { .. })));
    // Dropping a process kills what it runs, soon.
    let mut process = node
        .spawn(&GuestCommand::shell("echo $$; exec sleep 1000"))
        .unwrap();
    let Some(GuestEvent::Stdout(pid)) = process.next_event(Some(LIMIT)).unwrap() else {
        panic!("no pid")
    };
    drop(process);
    let pid = String::from_utf8(pid).unwrap();
    let pid = pid.trim();
    let gone = format!("while kill -0 {pid} 2>/dev/null; do usleep 10000; done");
    text_of(node, &gone);
    let mut process = node.spawn(&GuestCommand::new("cat").with_input()).unwrap();
    let input = process.input();
    let mut next = || process.next_event(Some(LIMIT)).unwrap();
    input.write(b"typed").unwrap();
    assert_eq!(next(), Some(GuestEvent::Stdout(b"typed".to_vec())));
    input.close().unwrap();
    assert_eq!(next(), Some(GuestEvent::Exit(GuestExit::Code(0))));
}

fn files(node: &Node) {
    let dir = tempfile::tempdir().unwrap();
    let big: Vec<u8> = (0..8_u32 << 20)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    std::fs::write(dir.path().join("tree/big"), &big).unwrap();
    let started = Instant::now();
    node.put(&dir.path().join("tree"), Path::new("/root/copy"), &|_| ())
        .unwrap();
    println!("8 MiB in: {} ms", started.elapsed().as_millis());
    let started = Instant::now();
    let back = node
        .get(Path::new("/root/copy"), &dir.path().join("back"), &|_| ())
        .unwrap();
    println!("8 MiB out: {} ms", started.elapsed().as_millis());
    assert!(std::fs::read(back.join("big")).unwrap() == big);
    let (none, nowhere) = (Path::new("/none"), Path::new("/nowhere/x"));
    let tree = dir.path().join("tree");
    for (copied, part) in [
        (node.get(none, dir.path(), &|_| ()).map(drop), "/none: "),
        (node.put(none, Path::new("/root"), &|_| ()), "/none: "),
        (node.put(&tree, nowhere, &|_| ()), "/nowhere"),
    ] {
        let error = copied.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

fn many_at_once(node: &Node) {
    std::thread::scope(|scope| {
        for number in 0..qnic_cluster::COMMAND_SLOTS {
            scope.spawn(move || {
                assert_eq!(text_of(node, &format!("echo {number}")), number.to_string())
            });
        }
    });
}

fn machine(node: &Node) {
    assert_eq!(node.state(), NodeState::Ready);
    node.monitor().unwrap().execute(&qmp::STOP).unwrap();
    assert_eq!(node.state(), NodeState::Paused);
    node.monitor().unwrap().execute(&qmp::CONT).unwrap();
    // A command that runs while the guest restarts ends with an error, not never.
    let process = node.spawn(&GuestCommand::new("sleep").arg("1000")).unwrap();
    let boots = node.reset().unwrap();
    assert!(matches!(
        process.wait(Some(LIMIT)),
        Err(Error::Guest { .. })
    ));
    node.wait_ready(boots, LIMIT).unwrap();
    assert_eq!(text_of(node, "echo back"), "back");
    node.power_off().unwrap();
    assert_eq!(node.state(), NodeState::Dead);
    assert!(matches!(
        node.wait_ready(0, LIMIT),
        Ok(_) | Err(Error::Failed { .. })
    ));
}

/// Bytes that a file takes on the disk.
fn space(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// A guest that writes without end to its logs does not fill the host's disk (X8). The first and
/// the last of what it has said stay.
#[test]
fn the_logs_of_a_guest_stay_small() {
    const WRITTEN: u64 = 48 << 20;
    const MOST: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let spec = without_ports(ClusterSpec::new("loud").with(plain("a")));
    let cluster = Cluster::boot(&spec, &options(&dir, Mode::Attached)).unwrap();
    let a = cluster.node("a").unwrap();
    text_of(a, "echo first > /dev/ttyS0");
    // The console is slow, the port is not: both are logs of the same kind.
    let blocks = WRITTEN >> 16;
    let port = "$(grep -l org.qnic.ready /sys/class/virtio-ports/*/name | cut -d/ -f5)";
    let flood = format!("dd if=/dev/zero bs=65536 count={blocks} > /dev/{port}");
    text_of(a, &flood);
    let log = a.console_path().with_file_name("ready.log");
    assert!(std::fs::metadata(&log).unwrap().len() > WRITTEN);
    let end = Instant::now() + LIMIT;
    while space(&log) > MOST {
        assert!(Instant::now() < end, "{} bytes", space(&log));
        text_of(a, "true");
    }
    text_of(a, "echo last > /dev/ttyS0");
    let console = a.console_log();
    assert!(console.contains("first") && console.contains("last"));
    cluster.end().unwrap();
}

#[test]
fn a_detached_cluster_is_found_again_and_taken_down() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir, Mode::Detached);
    let spec = without_ports(ClusterSpec::new("one").with(plain("a")));
    drop(Cluster::boot(&spec, &options).unwrap());
    let runtime = &options.runtime;
    assert!(matches!(
        Cluster::boot(&spec, &options),
        Err(Error::InUse { .. })
    ));
    assert!(qnic_cluster::sweep(runtime).unwrap().is_empty());
    let cluster = Cluster::find(runtime, None, None).unwrap();
    assert_eq!(text_of(cluster.node("a").unwrap(), "hostname"), "a");
    qnic_cluster::down(runtime, "one").unwrap();
    assert!(runtime.names().is_empty());
}
