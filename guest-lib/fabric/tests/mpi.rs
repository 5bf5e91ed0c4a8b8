//! Open MPI of the distribution over this provider in host mode: each rank is the process of a node (X10, X15).
//!
//! ```text
//!   mpirun ─┬─ rank 0 ── libfabric ── provider ── NIC 0 ─┐
//!           ├─ rank 1 ── …                     ── NIC 1 ─┤ a device in the test's process
//!           └─ …                                         ┘
//! ```

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use qnic::NodeId;
use qnic_device::{ByteSize, Config, Device, NicSettings};
use qnic_images::{Cache, HostMpi, Provisioner, Silent};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use tempfile::TempDir;

mod built;

const NODES: u16 = 3;

/// Messages by Open MPI's mtl `ofi`.
const MESSAGES: &[(&str, &str)] = &[
    ("pml", "cm"),
    ("mtl", "ofi"),
    ("mtl_ofi_provider_include", "qnic"),
];
/// Messages and memory by its btl `ofi`.
const ONE_SIDED: &[(&str, &str)] = &[
    ("pml", "ob1"),
    ("btl", "ofi,self"),
    ("btl_ofi_mode", "2"),
    ("btl_ofi_provider_include", "qnic"),
];

/// Nodes, and what runs on them.
struct Nodes {
    device: Device,
    mpi: HostMpi,
    folder: TempDir,
}

impl Nodes {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let nics = (0..NODES).map(|node| {
            let socket = folder.path().join(node.to_string());
            NicSettings::new(node.to_string(), NodeId(node), socket, ByteSize::mib(256))
        });
        let device = Device::start(&Config::new(nics.collect())).unwrap();
        fs::copy(built::library_file(), folder.path().join("libqnic-fi.so")).unwrap();
        let mpi = provisioner().host_mpi().unwrap();
        Nodes {
            device,
            mpi,
            folder,
        }
    }

    /// A program of the examples, compiled.
    fn program(&self, name: &str) -> PathBuf {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/mpi");
        let source = examples.join(name).with_extension("c");
        let program = self.folder.path().join(name);
        provisioner().compile_mpi(&source, &program).unwrap();
        program
    }

    /// mpirun, with a rank of a program on each node.
    fn job(&self, name: &str, parameters: &[(&str, &str)], words: &[&str]) -> Command {
        let program = self.program(name);
        let mut command = self.mpi.command();
        command.env("FI_PROVIDER_PATH", self.folder.path());
        command.env("QNIC_HOST_MEMORY", "96MiB");
        // Neither settings of the user, nor files elsewhere.
        command.env("HOME", self.folder.path());
        command.env("TMPDIR", self.folder.path());
        command.args(["--timeout", "300", "--bind-to", "none"]);
        command.args(["--map-by", ":OVERSUBSCRIBE"]);
        let others = [("mpi_yield_when_idle", "1")];
        for (key, value) in parameters.iter().chain(&others) {
            command.args(["--mca", key, value]);
        }
        for node in 0..NODES {
            if node > 0 {
                command.arg(":");
            }
            let socket = self.folder.path().join(node.to_string());
            let socket = format!("QNIC_HOST_SOCKET={}", socket.display());
            command.args(["-n", "1", "-x", "FI_PROVIDER_PATH"]);
            command.args(["-x", "QNIC_HOST_MEMORY", "-x", &socket]);
            command.args(self.mpi.rank(&program)).args(words);
        }
        command.stdin(Stdio::null());
        command
    }

    /// All ranks end well, and one has said this.
    fn run(&self, name: &str, parameters: &[(&str, &str)], says: &str) {
        let ended = self.job(name, parameters, &[]).output().unwrap();
        let said = [ended.stdout, ended.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(ended.status.success(), "{name}: {}\n{said}", ended.status);
        assert!(said.contains(says), "{name}: {said}");
    }
}

fn provisioner() -> Provisioner {
    Provisioner::new(Cache::of_user().unwrap(), Arc::new(Silent))
}

/// The processes that a process has started.
fn children(of: u32) -> Vec<OwnedFd> {
    let list = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
    let open = |number: &str| {
        let process = Pid::from_raw(number.parse().unwrap()).unwrap();
        pidfd_open(process, PidfdFlags::empty()).unwrap()
    };
    list.split_whitespace().map(open).collect()
}

/// Longest time until a rank ends whose job has.
const SOON: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

fn wait_for_ranks(job: &mut Child) {
    let lines = BufReader::new(job.stdout.take().unwrap()).lines();
    let ranks = lines
        .map(Result::unwrap)
        .filter(|line| line.starts_with("rank "));
    assert_eq!(ranks.take(NODES.into()).count(), usize::from(NODES));
}

/// Messages, memory of others, and four threads of each rank at once.
#[test]
fn programs_of_mpi_exchange_checked_data() {
    let nodes = Nodes::new();
    nodes.run("exchange", MESSAGES, "3 ranks have exchanged checked data");
    let one_sided = "3 ranks have found checked data in each other's memory";
    nodes.run("one-sided", ONE_SIDED, one_sided);
    let threads = "4 threads of 3 ranks have exchanged checked data";
    nodes.run("threads", MESSAGES, threads);
    nodes.device.stop().unwrap();
}

#[test]
fn a_rank_that_is_killed_ends_the_job() {
    let nodes = Nodes::new();
    let mut job = nodes.job("exchange", MESSAGES, &["hold"]);
    let mut job = job.stdout(Stdio::piped()).spawn().unwrap();
    wait_for_ranks(&mut job);
    let ranks = children(job.id());
    assert_eq!(ranks.len(), usize::from(NODES));
    pidfd_send_signal(&ranks[1], Signal::KILL).unwrap();
    assert!(!job.wait().unwrap().success());
    for rank in ranks {
        let ended = poll(&mut [PollFd::new(&rank, PollFlags::IN)], Some(&SOON));
        assert_eq!(ended, Ok(1), "a rank goes on without its job");
    }
    nodes.device.stop().unwrap();
}
