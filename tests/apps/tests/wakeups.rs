//! Two processes of host mode wake each other by notifications, as `qnic bench peers` has two guests
//! do (P5).

use std::process::{Command, Stdio};

use qnic_abi::NodeId;
use qnic_apps::report::BenchRow;
use qnic_device::{ByteSize, Config, Device, NicSettings};

const BALLS: usize = 20;

#[test]
fn two_processes_wake_each_other_by_handlers_and_by_descriptors() {
    let directory = tempfile::tempdir().unwrap();
    let socket = |node: u16| directory.path().join(format!("{node}.sock"));
    let nics = [0, 1].map(|node| {
        NicSettings::new(
            node.to_string(),
            NodeId(node),
            socket(node),
            ByteSize::mib(64),
        )
    });
    let _device = Device::start(&Config::new(nics.into())).unwrap();
    let start = |node: u16, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qnic-app"));
        command.args(["wakeup-bench", "--peer", &(1 - node).to_string()]);
        command.args(["--balls", &BALLS.to_string()]).args(more);
        command.env("QNIC_HOST_SOCKET", socket(node));
        command.env("QNIC_HOST_MEMORY", "16MiB");
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let echo = start(1, &["--echo"]);
    let output = start(0, &[]).wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(echo.wait_with_output().unwrap().status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<BenchRow> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<_> = rows.iter().map(|row| &*row.operation).collect();
    assert_eq!(names, ["handler", "descriptor"]);
    assert!(rows.iter().all(|row| row.latency[0].rounds == BALLS));
}
