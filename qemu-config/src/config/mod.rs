//! The cluster file.
//!
//! ```toml
//! name = "pair"                 # a-z, 0-9, "-"
//! accel = "auto"                # or "kvm", "tcg"
//! driver = "module"             # or "vfio": docs/vfio.md
//! ethernet = true               # false: nodes have no Ethernet ports; or see [`EthernetSpec`]
//! mpi = true                    # guests have Open MPI: docs/mpi.md; false if left out
//! verbs = true                  # guests have a device of libibverbs: docs/verbs.md; false if left out
//!
//! [device]
//! metrics = "127.0.0.1:9750"    # for Prometheus: docs/metrics.md
//! engines = "auto"              # threads that NICs are dealt to in turn: "auto", or 1 to 16
//!
//! [[node]]
//! name = "a"
//! memory = "256MiB"
//! share = "results" # a directory of this machine at /mnt/share, read only
//! memory_max = "1GiB" # `cargo qnic grow` adds up to this while the guest runs
//! cpus = 1
//! image = "debian.qcow2" # a disk image with a kernel of its own: docs/disk-images.md
//! kernel = "stable"             # or "backports", "generic"
//! nic = true                    # false: a guest with an Ethernet port alone
//! driver = "vfio"               # not as the others
//! ethernet = true               # or false: not as the others; or addresses, see [`PortSpec`]
//! outside = false               # true: reaches this machine's networks, by QEMU's user-mode stack
//! nics = [{ name = "main" }]    # instead: several NICs, also on networks of their own, see [`NicSpec`]
//! swap = "512MiB"               # a disk with serial "swap", on which the guest swaps when it is ready
//! disk = "1GiB"                 # a blank disk with serial "disk"
//! qemu_args = ["-device", "virtio-rng-pci"]
//! files = [{ from = "hello", to = "/usr/bin/hello", mode = "755" }]
//!
//! [[node]]
//! name = "n"                    # n0, n1, n2
//! count = 3
//! ```
//!
//! How NICs are joined, what their links do to frames, and on which hosts guests run
//! is in `[network]`: see [`NetworkSpec`]. Block devices in the memory of other nodes are in
//! `[[remote_memory]]`: see [`RemoteMemorySpec`].
//!
//! Only the two names are required. Unknown keys are refused. Every error is reported with
//! file, line, column, key and what was expected, as in the configuration of the device
//! process, which this crate makes from it: both come from `qnic-config`.

mod driver;
mod drivers;
mod ethernet;
mod image;
mod mpi;
mod network;
mod nics;
mod on_off;
mod parse;
mod parts;
mod ports;
mod remote_memory;
mod rules;
mod schedule;
mod share;
mod spec;
mod validate;
mod verbs;

#[cfg(test)]
mod tests;

pub use driver::NicDriver;
pub use ethernet::{EthernetPort, EthernetSpec, PortSpec};
pub use network::{HostSpec, LinkSpec, NetworkSpec, ProcessSpec};
pub(crate) use nics::MAX_NICS;
pub use on_off::OnOff;
pub(crate) use remote_memory::Served;
pub(crate) use rules::check_name;
pub use rules::MAX_NAME;
pub use schedule::{RepeatSpec, ScheduleSpec, Step, StepChange};
pub use share::ShareSpec;
pub use spec::{
    AccelChoice, ClusterSpec, DeviceSpec, FileSpec, NicSpec, NodeSpec, RemoteMemorySpec,
};
