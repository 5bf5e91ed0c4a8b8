//! The program that measures NetVM's evaluation in a guest with two NICs (N27), here between two of host mode.

use std::collections::BTreeSet;
use std::process::Command;

use qnic_abi::NodeId;
use qnic_apps::paper::Sample;
use qnic_device::{ByteSize, Config, Device, NicSettings};

/// What suites.toml has in `paper-guest`.
const TABLES: [&str; 13] = [
    "channels",
    "length-channels",
    "length-notifications",
    "length-offsets",
    "length-streams",
    "length-transfers",
    "notification",
    "notification-4",
    "notification-4096",
    "operations",
    "pending",
    "rates",
    "transfers",
];

#[test]
fn every_table_and_curve_is_measured_between_the_nics_of_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let socket = |name: &str| directory.path().join(format!("n0{name}.sock"));
    let nics = [(0, "near"), (1, "far")].map(|(node, name)| {
        let socket = socket(&format!(".{name}"));
        NicSettings::new(name.to_owned(), NodeId(node), socket, ByteSize::mib(64))
    });
    let _device = Device::start(&Config::new(nics.into())).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_qnic-app"))
        .arg("paper")
        .env("QNIC_HOST_SOCKET", socket(""))
        .env("QNIC_HOST_MEMORY", "16MiB")
        .env("QNIC_HOST_PHYSICAL", "1")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said = String::from_utf8(output.stdout).unwrap();
    let samples = said.lines().map(serde_json::from_str);
    let samples: Vec<Sample> = samples.map(Result::unwrap).collect();
    assert!(samples.iter().all(|it| it.value > 0.0), "{samples:?}");
    let tables: BTreeSet<_> = samples.iter().map(|it| &*it.table).collect();
    assert!(tables.into_iter().eq(TABLES), "{samples:?}");
    let steps = samples.iter().filter(|it| it.table == "length-transfers");
    let lengths = steps.filter(|it| it.row == "write").map(|it| it.at.clone());
    assert!(lengths.flatten().any(|(_, bytes)| bytes == 4100.0));
}
