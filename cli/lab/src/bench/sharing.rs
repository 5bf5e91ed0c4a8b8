//! Two guests that share memory and ring each other, by QEMU's ivshmem-doorbell; no NIC.
//!
//! ```text
//!   guest ── memory ── guest      qnic-app shared-memory-bench: both look at it
//!   guest ── doorbell, eventfd, MSI-X ──► guest      qnic-app doorbell-bench: both sleep
//! ```
//! VFIO hands the interrupt to a program. The stock kernels' VFIO wants an IOMMU, so the guests have
//! one; it does not translate interrupts, which would make them slower.

use anyhow::{Context, Result};
use qnic_apps::report::BenchRow;
use qnic_cluster::{program, ByteSize, FileSpec, APP, APP_PATH};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use tempfile::TempDir;

use super::ivshmem_server::Server;
use super::limits::LIMIT;

/// Memory that they share, of which a page is for the words that both look at.
const BYTES: u64 = 1 << 20;

/// The device in a guest, and the file that stands for the memory: its second region.
const DEVICE: &str = "$(dirname $(grep -l 0x1110 /sys/bus/pci/devices/*/device))";
const MEMORY: &str = "/resource2";

/// Gives the device to VFIO. Interrupts that no IOMMU translates are unsafe beside programs that are
/// not trusted; there are none here.
const BIND: &str = "modprobe vfio_iommu_type1 allow_unsafe_interrupts=1 \
                    && modprobe vfio-pci ids=1af4:1110";

/// Longest time of a program that waits for interrupts.
const SECONDS: u32 = 60;

/// The guests; they end before their server.
pub(super) struct Sharing {
    nodes: VmNodes,
    _server: Server,
    _directory: TempDir,
}

impl Sharing {
    /// Boots two guests with this much memory, of the kernel with this name.
    pub(super) fn boot(kernel: &str, memory: ByteSize) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a directory for the server's socket")?;
        let socket = directory.path().join("ivshmem");
        let server = Server::start(&socket, 2, BYTES)?;
        let program = program(APP).context("build the program of guests")?;
        let mut spec = VmNodes::spec("sharing", &[kernel; 2])?;
        spec.network = None;
        for node in &mut spec.nodes {
            node.nic = false;
            node.memory = memory;
            let socket = format!("socket,id=ivshmem,path={}", socket.display());
            let arguments = [
                "-device",
                "intel-iommu,intremap=off",
                "-chardev",
                &socket,
                "-device",
                "ivshmem-doorbell,chardev=ivshmem,vectors=1",
            ];
            node.qemu_args.extend(arguments.map(str::to_owned));
            node.files.push(FileSpec {
                from: program.clone(),
                to: APP_PATH.into(),
                mode: 0o755,
            });
        }
        Ok(Sharing {
            nodes: VmNodes::boot_spec(&spec)?,
            _server: server,
            _directory: directory,
        })
    }

    /// Gives the devices of both guests to VFIO; once, before [`Self::by_doorbell`].
    pub(super) fn bind(&self) -> Result<()> {
        let bound = [0, 1].map(|node| shell(&self.nodes, node, BIND).map(drop));
        bound.into_iter().collect()
    }

    /// A round of looks at memory, with copies of so many bytes.
    pub(super) fn by_memory(&self, size: usize) -> Result<BenchRow> {
        self.round(&format!(
            "qnic-app shared-memory-bench --file {DEVICE}{MEMORY} --size {size}"
        ))
    }

    /// A round of interrupts.
    pub(super) fn by_doorbell(&self) -> Result<BenchRow> {
        self.round(&format!(
            "timeout {SECONDS} qnic-app doorbell-bench --device {DEVICE}"
        ))
    }

    /// Runs both sides of a program; what the one says that measures.
    fn round(&self, command: &str) -> Result<BenchRow> {
        let mut echo = background(&self.nodes, 1, &format!("exec {command} --echo"))?;
        let Some(line) = echo.line(LIMIT)? else {
            echo.succeed("the echo", LIMIT)?;
            anyhow::bail!("the echo says nothing");
        };
        anyhow::ensure!(line.contains("serving"), "the echo says {line:?}");
        let said = shell(&self.nodes, 0, &format!("exec {command}"))?;
        echo.succeed("the echo", LIMIT)?;
        serde_json::from_str(said.trim()).with_context(|| format!("line {said:?}"))
    }
}
