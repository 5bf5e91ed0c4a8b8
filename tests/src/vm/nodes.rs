//! Clusters of guests that a case gets for itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use qnic_cluster::{ClusterSpec, Engines, NetworkSpec, ProcessId};
use qnic_links::Shape;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::wait_until_all_empty;
use rustix::process::{kill_process, Pid, Signal};

use super::shell::no_kernel_complains;
use super::silent::FAULT_TIMEOUT;

/// Both stock kernels.
pub(super) const BOTH_KERNELS: &[&str] = &["stable", "backports"];

/// The cases of this process share guests.
static SHARES: AtomicBool = AtomicBool::new(false);

/// Guests with these kernels, on which a case has ended well.
static KEPT: Mutex<Option<(Vec<String>, VmNodes)>> = Mutex::new(None);

/// Has the cases of this process that ask for guests with the same kernels share them. One that fails takes its
/// guests with it, and the next boots its own.
pub(crate) fn share() {
    SHARES.store(true, Ordering::Relaxed);
}

/// Ends the guests that are kept.
pub(crate) fn end_shared() -> Result<()> {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).take();
    kept.map_or(Ok(()), |(_, nodes)| nodes.end())
}

/// Runs a case on guests with these kernels: fresh ones, or those of the case before it ([`share`]).
pub(super) fn on(
    name: &str,
    kernels: &[&str],
    case: impl FnOnce(&VmNodes) -> Result<()>,
) -> Result<()> {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).take();
    let nodes = match kept {
        Some((of, nodes)) if of == kernels => nodes,
        Some((_, nodes)) => {
            nodes.end()?;
            VmNodes::boot(name, kernels)?
        }
        None => VmNodes::boot(name, kernels)?,
    };
    let nodes = nodes.watched();
    case(&nodes)?;
    if !SHARES.load(Ordering::Relaxed) {
        return nodes.end();
    }
    no_kernel_complains(&nodes)?;
    wait_until_all_empty(&nodes).context("for the next case")?;
    let kernels = kernels.iter().map(|kernel| (*kernel).to_owned()).collect();
    *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = Some((kernels, nodes));
    Ok(())
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
