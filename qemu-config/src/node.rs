//! One node of a running cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::copy::{self, Count};
use crate::dirs::NodeDir;
use crate::follow::{read_log, tail};
use crate::guest_command::{GuestCommand, GuestOutput};
use crate::guest_process::{self, GuestProcess};
use crate::host_node::HostNode;
use crate::limits::{MEMORY_SLOTS, MEMORY_STEP};
use crate::monitor::Monitor;
use crate::node_state::{state_of, wait_answering, NodeState};
use crate::process::ProcessId;
use crate::qmp;
use crate::ready::{self, boots_reported, wait_ready};
use crate::wait::Deadline;
use crate::{ByteSize, Cancel, Error, NodeSpec, Result};

/// Time that QEMU's monitor may take to answer.
const MONITOR_LIMIT: Duration = Duration::from_secs(15);

/// A node: its guest and the QEMU that runs it.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) spec: NodeSpec,
    pub(crate) dir: NodeDir,
    pub(crate) cancel: Option<Cancel>,
    /// Its commands are processes of this machine: there is no guest.
    pub(crate) host: Option<Arc<HostNode>>,
}

impl Node {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns true if it has a guest; the commands of any other are processes of this machine.
    pub fn is_guest(&self) -> bool {
        self.host.is_none()
    }

    /// How it was configured.
    pub fn spec(&self) -> &NodeSpec {
        &self.spec
    }

    /// Runs `command` to its end, which has to come within `limit` of its start.
    ///
    /// # Errors
    /// As [`Self::spawn`] and [`GuestProcess::wait`]. A command that fails is no error: see
    /// [`GuestOutput::exit`].
    pub fn run(&self, command: &GuestCommand, limit: Duration) -> Result<GuestOutput> {
        self.spawn(command)?.wait(Some(limit))
    }

    /// Starts `command`, which takes 30 s at most.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Guest`] if agent or helper do not answer, with the state of the guest;
    /// [`Error::Interrupted`].
    pub fn spawn(&self, command: &GuestCommand) -> Result<GuestProcess> {
        self.spawn_within(command, None)
    }

    /// As [`Self::spawn`], but gives up after `limit`.
    ///
    /// # Errors
    /// As [`Self::spawn`].
    pub fn spawn_within(
        &self,
        command: &GuestCommand,
        limit: Option<Duration>,
    ) -> Result<GuestProcess> {
        if let Some(host) = &self.host {
            return GuestProcess::start_here(&self.dir, host, command, self.cancel.as_ref());
        }
        self.check_alive()?;
        GuestProcess::start(&self.dir, command, limit, self.cancel.as_ref())
    }

    /// Copies the file or directory `from` of the host to `to` in the guest, or into
    /// `to` if that is a directory there. `count` is told the bytes sent.
    ///
    /// # Errors
    /// [`Error::Io`] names a source that cannot be read, [`Error::Guest`] what the
    /// guest said. In either case nothing is left at the destination.
    pub fn put(&self, from: &Path, to: &Path, count: Count<'_>) -> Result<()> {
        self.check_alive()?;
        copy::put(&self.dir, from, to, count, self.cancel.as_ref())
    }

    /// Copies the file or directory `from` of the guest to `to` on the host, or into
    /// `to` if that is a directory. Returns the path of what was made.
    ///
    /// # Errors
    /// As [`Self::put`], the other way round.
    pub fn get(&self, from: &Path, to: &Path, count: Count<'_>) -> Result<PathBuf> {
        self.check_alive()?;
        copy::get(&self.dir, from, to, count, self.cancel.as_ref())
    }

    /// A connection to QEMU's monitor. QEMU serves one at a time: drop it soon.
    ///
    /// # Errors
    /// [`Error::Monitor`] if QEMU does not answer.
    pub fn monitor(&self) -> Result<Monitor> {
        self.check_alive()?;
        Monitor::connect(&self.dir, self.deadline(MONITOR_LIMIT))
    }

    /// How often the guest has reported that it has booted, or has failed to boot. The number from
    /// before a restart tells [`Self::wait_ready`] which boot to wait for.
    pub fn boots(&self) -> usize {
        boots_reported(&self.dir)
    }

    /// Resets the machine, as its reset button would. Returns what [`Self::boots`]
    /// was before.
    ///
    /// # Errors
    /// [`Error::Monitor`].
    pub fn reset(&self) -> Result<usize> {
        let boots = self.boots();
        self.monitor()?.execute(&qmp::SYSTEM_RESET)?;
        Ok(boots)
    }

    /// Stops the CPUs, as a debugger would: the device process is not told.
    ///
    /// # Errors
    /// [`Error::Monitor`].
    pub fn stop_cpus(&self) -> Result<()> {
        self.monitor()?.execute(&qmp::STOP)?;
        Ok(())
    }

    /// Lets the CPUs go on.
    ///
    /// # Errors
    /// [`Error::Monitor`].
    pub fn continue_cpus(&self) -> Result<()> {
        self.monitor()?.execute(&qmp::CONT)?;
        Ok(())
    }

    /// Adds memory to the guest while it runs: a DIMM, which the kernel takes into use by itself.
    ///
    /// # Errors
    /// [`Error::Memory`] if the size is no multiple of 128 MiB, or the cluster file does not allow as much;
    /// [`Error::Monitor`].
    pub fn add_memory(&self, size: ByteSize) -> Result<()> {
        let refused = |message| Err(Error::memory(self.name(), message));
        let Some(most) = self.spec.memory_max else {
            return refused("set memory_max in its [[node]], and boot it again".to_owned());
        };
        if size.0 == 0 || !size.0.is_multiple_of(MEMORY_STEP.0) {
            return refused(format!(
                "expected a multiple of {MEMORY_STEP}, found {size}"
            ));
        }
        let mut monitor = self.monitor()?;
        let added = monitor.execute(&qmp::QUERY_MEMORY_DEVICES)?;
        let sizes = added
            .iter()
            .filter_map(|device| device["data"]["size"].as_u64());
        let present = self.spec.memory.0 + sizes.sum::<u64>();
        let left = ByteSize(most.0.saturating_sub(present));
        if size > left {
            return refused(format!("memory_max is {most}, which leaves {left}"));
        }
        if added.len() == MEMORY_SLOTS {
            return refused(format!(
                "it was added {MEMORY_SLOTS} times already, which is all that QEMU can: boot it with more"
            ));
        }
        let (dimm, memory) = (
            format!("dimm{}", added.len()),
            format!("added{}", added.len()),
        );
        // The device process maps it, as all memory of the guest.
        let object = json!({
            "qom-type": "memory-backend-memfd", "id": &memory, "size": size.0, "share": true,
        });
        monitor.execute(&qmp::OBJECT_ADD.with(object))?;
        let device = json!({ "driver": "pc-dimm", "id": dimm, "memdev": memory });
        if let Err(error) = monitor.execute(&qmp::DEVICE_ADD.with(device)) {
            // Nothing of what was refused is left.
            monitor.execute(&qmp::OBJECT_DEL.with(json!({ "id": &memory })))?;
            return Err(error);
        }
        Ok(())
    }

    /// Presses the power button: it wakes a guest that sleeps (`freeze`) and has the module `button`.
    ///
    /// # Errors
    /// [`Error::Monitor`].
    pub fn press_power_button(&self) -> Result<()> {
        self.monitor()?.execute(&qmp::SYSTEM_POWERDOWN)?;
        Ok(())
    }

    /// Ends QEMU at once, as pulling the plug would.
    ///
    /// # Errors
    /// [`Error::Monitor`], or [`Error::Timeout`] if it has not ended within 15 s.
    pub fn power_off(&self) -> Result<()> {
        self.monitor()?.execute(&qmp::QUIT)?;
        self.wait_ended(MONITOR_LIMIT)
    }

    fn wait_ended(&self, limit: Duration) -> Result<()> {
        let Some(qemu) = self.qemu().and_then(ProcessId::open) else {
            return Ok(());
        };
        qemu.wait(&self.deadline(limit)).map_err(|stop| match stop {
            crate::wait::Stop::Cancelled => Error::Interrupted,
            crate::wait::Stop::Timeout => Error::Timeout {
                what: format!("node {}: the end of its QEMU", self.name()),
                after: limit,
                log: String::new(),
            },
        })
    }

    /// Waits until the guest has reported a boot after the first `boots`. Returns the release of
    /// its kernel.
    ///
    /// # Errors
    /// [`Error::Failed`] if its init failed, QEMU ended or the guest restarts over and
    /// over; [`Error::Timeout`]; [`Error::Interrupted`]. All but the last come with
    /// the end of the console.
    pub fn wait_ready(&self, boots: usize, limit: Duration) -> Result<String> {
        self.wait_ready_with(boots, limit, &self.deadline(limit))
    }

    pub(crate) fn wait_ready_with(
        &self,
        boots: usize,
        limit: Duration,
        deadline: &Deadline,
    ) -> Result<String> {
        let qemu = self
            .qemu()
            .and_then(ProcessId::open)
            .ok_or_else(|| self.ended())?;
        let ready = wait_ready(&self.dir, &qemu, boots, limit, deadline);
        let release = ready.map_err(|error| self.in_its_words(error))?;
        wait_answering(&self.dir, deadline)?;
        Ok(release)
    }

    /// What a disk image is waited for is more than its init.
    fn in_its_words(&self, error: Error) -> Error {
        match error {
            Error::Timeout { after, log, .. } if self.spec.image.is_some() => Error::Timeout {
                what: format!(
                    "node {}: the end of cloud-init in its disk image (what it needs: docs/disk-images.md)",
                    self.name()
                ),
                after,
                log,
            },
            other => other,
        }
    }

    fn deadline(&self, limit: Duration) -> Deadline {
        Deadline::new(Some(limit), self.cancel.as_ref())
    }

    /// Returns an error if its commands are processes of this machine.
    pub(crate) fn check_guest(&self) -> Result<()> {
        match self.is_guest() {
            true => Ok(()),
            false => Err(Error::NoGuest {
                node: self.name().to_owned(),
            }),
        }
    }

    /// Fails if its guest stands still, as far as QEMU knows: paused, panicked.
    ///
    /// # Errors
    /// [`Error::Guest`] says why; as [`Self::spawn`] of a node that has ended.
    pub(crate) fn check_runs(&self) -> Result<()> {
        self.check_alive()?;
        guest_process::check_runs(&self.dir)
    }

    fn check_alive(&self) -> Result<()> {
        self.check_guest()?;
        match self.qemu() {
            Some(qemu) if qemu.is_alive() => Ok(()),
            _ => Err(self.ended()),
        }
    }

    pub(crate) fn ended(&self) -> Error {
        ready::ended(&self.dir)
    }

    /// The output of the guest's console since the cluster was booted; only its first and last part
    /// if it is very long.
    pub fn console_log(&self) -> String {
        let log = read_log(&self.dir.console()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The last `lines` lines of the console, as text that cannot drive a terminal. If the kernel
    /// panicked before them, everything from the line that says why.
    pub fn console_tail(&self, lines: usize) -> String {
        tail(&self.dir.console(), lines)
    }

    /// Where the console is logged.
    pub fn console_path(&self) -> PathBuf {
        self.dir.console()
    }

    /// Where QEMU's own messages are logged.
    pub fn qemu_log_path(&self) -> PathBuf {
        self.dir.qemu_log()
    }

    /// Its QEMU, which may have ended.
    pub fn qemu(&self) -> Option<ProcessId> {
        ProcessId::load(&self.dir.qemu_pid())
    }

    /// What it is doing. A guest that does not answer is waited for, for 10 s.
    pub fn state(&self) -> NodeState {
        if !self.is_guest() {
            return NodeState::Ready;
        }
        if self.check_alive().is_err() {
            return NodeState::Dead;
        }
        state_of(&self.dir)
    }
}
