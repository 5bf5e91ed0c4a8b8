//! Trials without guests (X2, X19): a cluster file, reports and statuses as with guests, in seconds.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use serde_json::Value;

/// Two nodes on bad links; the second has a NIC on a network of its own, too.
const FILE: &str = r#"
name = "host-trial"
[network]
seed = 3
default = { loss = "2%" }
[networks.disks]
[[node]]
name = "a"
nics = [{ name = "main" }, { name = "disks", network = "disks" }]
[[node]]
name = "b"
nics = [{ name = "main" }, { name = "disks", network = "disks" }]
"#;

/// A program that uses the NICs passes; one that fails gives its status to the command. Reports and
/// artifacts are those of guests, and nothing is left.
pub(crate) fn without_guests() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let path = |name: &str| dir.path().join(name);
    fs::write(path("c.toml"), FILE)?;
    // The runtime directory is this case's own.
    let exec = |arguments: &[&str]| -> Result<(Option<i32>, String)> {
        let own = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(own);
        command.arg("exec").arg(path("c.toml")).arg("--host");
        command.arg("--junit").arg(path("report.xml"));
        command.arg("--artifacts").arg(path("kept")).args(arguments);
        command
            .env("XDG_RUNTIME_DIR", dir.path())
            .stdin(Stdio::null());
        let output = command.output().context("start qnic exec")?;
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        Ok((
            output.status.code(),
            String::from_utf8_lossy(&said).into_owned(),
        ))
    };
    for nic in ["main", "disks"] {
        let variable = format!("env.QNIC_NIC={nic}");
        let program = ["qnic-app", "exchange", "--nodes", "0,1", "--rounds", "20"];
        let arguments = [&["--set", &variable, "--"], &program[..]].concat();
        let (status, said) = exec(&arguments)?;
        ensure!(status == Some(0), "{nic}: {status:?}: {said}");
        let report = fs::read_to_string(path("report.xml"))?;
        ensure!(report.matches("run qnic-app").count() == 2, "{report}");
        let nic: Value = serde_json::from_slice(&fs::read(path("kept/b/nic.json"))?)?;
        ensure!(nic["name"] == "b", "{nic}");
    }
    let (status, said) = exec(&[
        "--on",
        "b",
        "--",
        "sh",
        "-c",
        "echo $QNIC_NODE_NAME; exit 7",
    ])?;
    ensure!(
        status == Some(7) && said.contains("b\n"),
        "{status:?}: {said}"
    );
    let (status, said) = exec(&["--timeout", "1", "--", "sleep", "1000"])?;
    ensure!(status == Some(124), "{status:?}: {said}");
    ensure!(!path("qnic").exists(), "a cluster is left");
    Ok(())
}
