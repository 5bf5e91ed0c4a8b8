//! Clusters of guests that a case gets for itself.

use anyhow::{Context, Result};
use qnic_cluster::{ClusterSpec, Engines, NetworkSpec, ProcessId};
use qnic_links::Shape;
use qnic_trials::nodes::vm::VmNodes;
use rustix::process::{kill_process, Pid, Signal};

use super::silent::FAULT_TIMEOUT;

/// Both stock kernels.
pub(super) const BOTH_KERNELS: &[&str] = &["stable", "backports"];

/// Runs a case on fresh guests with these kernels.
pub(super) fn on(
    name: &str,
    kernels: &[&str],
    case: impl FnOnce(&VmNodes) -> Result<()>,
) -> Result<()> {
    on_spec(&VmNodes::spec(name, kernels)?, case)
}

/// Runs a case on so many fresh guests whose links can be made bad.
pub(super) fn on_network(
    name: &str,
    count: usize,
    case: impl FnOnce(&VmNodes) -> Result<()>,
) -> Result<()> {
    let mut spec = VmNodes::spec(name, &vec!["stable"; count])?;
    spec.network = Some(NetworkSpec {
        fault_timeout: Some(FAULT_TIMEOUT.parse()?),
        ..NetworkSpec::default()
    });
    on_spec(&spec, case)
}

/// The same on a torus with two columns.
pub(super) fn on_torus(
    name: &str,
    count: usize,
    case: impl FnOnce(&VmNodes) -> Result<()>,
) -> Result<()> {
    let mut spec = VmNodes::spec(name, &vec!["stable"; count])?;
    spec.network = Some(NetworkSpec {
        topology: Shape::Torus,
        columns: Some(2),
        ..NetworkSpec::default()
    });
    on_spec(&spec, case)
}

/// Runs a case on two fresh guests, one of each kernel, whose device process has two engines.
pub(super) fn on_two_engines(name: &str, case: impl FnOnce(&VmNodes) -> Result<()>) -> Result<()> {
    let mut spec = VmNodes::spec(name, BOTH_KERNELS)?;
    spec.device.engines = Engines::Count(2);
    on_spec(&spec, case)
}

/// Runs a case on a fresh cluster, and ends it.
pub(super) fn on_spec(spec: &ClusterSpec, case: impl FnOnce(&VmNodes) -> Result<()>) -> Result<()> {
    let nodes = VmNodes::boot_behind(spec, Vec::new())?.watched();
    case(&nodes)?;
    nodes.end()
}

/// Ends a device process as `kill -9` does.
pub(super) fn kill_device(device: &ProcessId) -> Result<()> {
    let pid = Pid::from_raw(device.pid).context("a device process without a number")?;
    kill_process(pid, Signal::KILL).context("kill a device process")
}
