//! What a node is doing, as QEMU and the guest agent say.
//!
//! ```text
//!   QEMU has ended ─▶ dead        its monitor does not answer ─▶ silent
//!   query-status:  guest-panicked ─▶ panicked      not running ─▶ paused
//!   running:  agent's port closed, or no boot reported ─▶ booting
//!             agent answers ─▶ ready               it does not ─▶ QEMU is asked again:
//!                                                  still running, port open ─▶ not answering
//! ```
//! A guest whose kernel panics tells QEMU by its device pvpanic, if the guest has the driver of
//! that (pvpanic-pci) loaded; QEMU stops the guest then, and its memory and console stay as they
//! were. A guest without the driver restarts. A guest that hangs says nothing. An open port of its
//! agent means little; an answer means that kernel and processes run.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::agent::Agent;
use crate::dirs::NodeDir;
use crate::monitor::{has_panicked, Monitor, STATE_SECONDS};
use crate::qemu::AGENT_LABEL;
use crate::qmp::{RunState, QUERY_STATUS};
use crate::ready::{self, boots_reported};
use crate::wait::Deadline;
use crate::{Error, Result};

/// Longest time for the guest agent to answer, other questions before this one included.
const AGENT_LIMIT: Duration = Duration::from_secs(10);

/// Time for the agent to answer before QEMU is asked what has become of the guest.
const AGENT_TURN: Duration = Duration::from_secs(2);

/// What a node is doing. It prints, also as JSON, as in "ready" or "not answering".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// The guest agent answers.
    Ready,
    /// The guest runs, its agent does not (yet).
    Booting,
    /// The virtual CPUs are stopped.
    Paused,
    /// The guest's kernel has panicked; it is stopped.
    Panicked,
    /// The guest runs, its agent does too, and has not answered for 10 s.
    #[serde(rename = "not answering")]
    NotAnswering,
    /// QEMU has ended.
    Dead,
    /// QEMU runs but does not answer.
    Silent,
}

impl NodeState {
    /// Returns true if the node is at work, on its way there, or stopped on purpose.
    pub fn is_well(self) -> bool {
        matches!(self, Self::Ready | Self::Booting | Self::Paused)
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `pad` keeps to the width of a column.
        f.pad(match self {
            Self::Ready => "ready",
            Self::Booting => "booting",
            Self::Paused => "paused",
            Self::Panicked => "panicked",
            Self::NotAnswering => "not answering",
            Self::Dead => "dead",
            Self::Silent => "silent",
        })
    }
}

/// The state of the node with directory `dir`, whose QEMU runs.
pub(crate) fn state_of(dir: &NodeDir) -> NodeState {
    state_within(dir, AGENT_LIMIT)
}

fn state_within(dir: &NodeDir, agent_limit: Duration) -> NodeState {
    let before = ask_qemu(dir).unwrap_or(NodeState::Silent);
    if before != NodeState::Ready {
        return before;
    }
    let deadline = Deadline::new(Some(agent_limit), None);
    if Agent::connect(dir, deadline).is_ok() {
        return NodeState::Ready;
    }
    // It may have been stopped, panicked or restarted meanwhile.
    match ask_qemu(dir) {
        Ok(NodeState::Ready) => NodeState::NotAnswering,
        Ok(other) => other,
        Err(_) => NodeState::Silent,
    }
}

/// The state as far as QEMU knows: [`NodeState::Ready`] if the agent has its port open.
pub(crate) fn ask_qemu(dir: &NodeDir) -> Result<NodeState> {
    let mut monitor = Monitor::connect(dir, Deadline::seconds(STATE_SECONDS))?;
    let status = monitor.execute(&QUERY_STATUS)?;
    if status.status == RunState::GuestPanicked {
        return Ok(NodeState::Panicked);
    }
    if !status.running {
        return Ok(NodeState::Paused);
    }
    let agent = monitor.is_port_open(AGENT_LABEL)? && boots_reported(dir) > 0;
    Ok(match agent {
        true => NodeState::Ready,
        false => NodeState::Booting,
    })
}

/// Waits until the agent of a guest that has reported its boot answers, as [`NodeState::Ready`]
/// promises: it opens its port a moment later.
///
/// # Errors
/// Returns what is wrong with the guest, or with its agent when `deadline` is over.
pub(crate) fn wait_answering(dir: &NodeDir, deadline: &Deadline) -> Result<()> {
    loop {
        let error = match Agent::connect(dir, deadline.at_most(AGENT_TURN)) {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if matches!(error, Error::Interrupted) || deadline.left() == Some(Duration::ZERO) {
            return Err(error);
        }
        match has_panicked(dir) {
            Ok(true) => return Err(ready::failed(dir, "its kernel has panicked")),
            Ok(false) => {}
            Err(_) => return Err(error),
        }
    }
}

#[cfg(test)]
#[path = "node_state_tests.rs"]
mod tests;
