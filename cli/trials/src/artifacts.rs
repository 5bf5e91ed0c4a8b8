//! What a trial keeps.
//!
//! ```text
//!   DIR/
//!     cluster.toml        the cluster that was booted, every default spelt out
//!     result.json         how it ended, with the cases and their times
//!     links.json          what the links did, and what they have counted
//!     schedule.json       the steps of the schedule that were taken, and when
//!     device.log          the device processes
//!     capture*.pcapng     on request: what ran over the links
//!     NODE/               of a node without a guest: outputs and nic.json
//!       console.log       the guest's console
//!       dmesg.log         its kernel's log
//!       stdout.log stderr.log   what the program printed
//!       nic.json          what the NIC has counted
//!       qemu.log          QEMU
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use qnic_cluster::{Cluster, GuestCommand, Node};
use serde_json::{json, Value};

use crate::cases::{Case, Ended};
use crate::verdict::Outcome;

/// Longest time for a guest to give its kernel's log.
const DMESG_LIMIT: Duration = Duration::from_secs(15);

/// The directory that a trial keeps things in.
#[derive(Clone, Debug)]
pub(crate) struct Artifacts(PathBuf);

impl Artifacts {
    /// Makes the directory, and one for each node.
    pub(crate) fn create<'a>(
        dir: &Path,
        nodes: impl IntoIterator<Item = &'a str>,
    ) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        for node in nodes {
            fs::create_dir_all(dir.join(node))?;
        }
        Ok(Self(dir.to_owned()))
    }

    pub(crate) fn file(&self, name: &str) -> io::Result<File> {
        File::create(self.0.join(name))
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all(bytes)
    }

    pub(crate) fn write_json(&self, name: &str, value: &Value) -> io::Result<()> {
        self.write(name, format!("{value:#}\n").as_bytes())
    }

    /// Keeps what `cluster`, which may be broken, has to tell. What cannot be had is replaced by
    /// the reason.
    pub(crate) fn collect(&self, cluster: &Cluster) -> io::Result<()> {
        let stats = cluster.device_stats();
        self.write("device.log", cluster.device_log().as_bytes())?;
        match &stats {
            Ok(stats) => self.write_json("links.json", &stats["network"])?,
            Err(error) => self.write_json("links.json", &json!({ "error": error.to_string() }))?,
        }
        let nics = stats
            .as_ref()
            .ok()
            .and_then(|stats| stats["nics"].as_array());
        std::thread::scope(|scope| {
            let nodes = cluster.nodes().iter().map(|node| {
                let is_its = |nic: &&Value| nic["name"] == node.name();
                let nic = nics.and_then(|nics| nics.iter().find(is_its));
                scope.spawn(move || self.collect_node(node, nic))
            });
            let nodes: Vec<_> = nodes.collect();
            let panicked = || Err(io::Error::other("a thread panicked"));
            nodes
                .into_iter()
                .try_for_each(|node| node.join().unwrap_or_else(|_| panicked()))
        })
    }

    fn collect_node(&self, node: &Node, nic: Option<&Value>) -> io::Result<()> {
        let name = node.name();
        if let Some(nic) = nic {
            self.write_json(&format!("{name}/nic.json"), nic)?;
        }
        if !node.is_guest() {
            return Ok(());
        }
        let dmesg = match node.run(&GuestCommand::new("dmesg"), DMESG_LIMIT) {
            Ok(output) => output.stdout,
            Err(error) => format!("[qnic: {error}]\n").into_bytes(),
        };
        let qemu = fs::read(node.qemu_log_path()).unwrap_or_default();
        self.write(&format!("{name}/dmesg.log"), &dmesg)?;
        // After the guest was asked: its console may have said more meanwhile.
        let console = node.console_log();
        self.write(&format!("{name}/console.log"), console.as_bytes())?;
        self.write(&format!("{name}/qemu.log"), &qemu)?;
        Ok(())
    }

    /// Keeps how it ended.
    pub(crate) fn keep_result(&self, outcome: &Outcome) -> io::Result<()> {
        let cases: Vec<_> = outcome.cases.iter().map(case).collect();
        let result = json!({
            "cluster": outcome.name,
            "settings": outcome.settings,
            "seed": outcome.seed,
            "verdict": outcome.verdict.to_string(),
            "status": outcome.verdict.status(),
            "seconds": outcome.took.as_secs_f64(),
            "cases": cases,
        });
        self.write_json("result.json", &result)
    }
}

fn case(case: &Case) -> Value {
    let (ended, message) = match &case.ended {
        Ended::Passed => ("passed", None),
        Ended::Skipped(why) => ("skipped", Some(why)),
        Ended::Failed { message, .. } => ("failed", Some(message)),
    };
    json!({
        "class": case.class,
        "name": case.name,
        "ended": ended,
        "message": message,
        "seconds": case.took.as_secs_f64(),
    })
}
