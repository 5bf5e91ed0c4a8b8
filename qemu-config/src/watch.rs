//! Watches a running cluster for what makes its programs wait in vain: a guest's kernel
//! panics, a QEMU or a device process ends.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;

use crate::monitor::has_panicked;
use crate::monitor::Events;
use crate::node::Node;
use crate::process::{Process, ProcessId};
use crate::qmp::Event;
use crate::wait::{Deadline, Stop};
use crate::{Cancel, Cluster, Error, Result};

/// What has broken a cluster.
#[derive(Debug)]
pub enum Broken {
    /// The kernel of this node's guest has panicked; the guest is stopped.
    Panicked {
        /// The node.
        node: String,
    },
    /// Anything else.
    Failed(Error),
}

/// What is watched of one node.
struct Watched<'a> {
    node: &'a Node,
    qemu: Process,
    /// `None` once QEMU has closed them.
    events: Option<Events>,
}

impl Cluster {
    /// Waits until something breaks the cluster, or `stop` is pulled: `None` then.
    ///
    /// QEMU tells of its events to one program at a time: no other may wait for a node to get ready
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::Monitor`] if a QEMU that runs does not tell of its events.
    pub fn wait_broken(&self, stop: &Cancel) -> Result<Option<Broken>> {
        let mut nodes = Vec::new();
        for node in self.nodes().iter().filter(|node| node.is_guest()) {
            let Some(qemu) = node.qemu().and_then(ProcessId::open) else {
                return Ok(Some(Broken::Failed(node.ended())));
            };
            let events = Events::connect(&node.dir, Deadline::seconds(10))?;
            // It may have panicked before this listened.
            if has_panicked(&node.dir)? {
                return Ok(Some(panicked(node)));
            }
            nodes.push(Watched {
                node,
                qemu,
                events: Some(events),
            });
        }
        let devices = self.devices();
        let devices: Vec<_> = devices
            .into_iter()
            .filter_map(|(name, id)| Some((name, id.open()?)))
            .collect();
        if devices.len() < self.spec().device_processes().len() {
            return Ok(Some(Broken::Failed(self.device_ended(0))));
        }
        Ok(wait(
            &mut nodes,
            &devices,
            &Deadline::new(None, Some(stop)),
            |index| self.device_ended(index),
        ))
    }

    /// The error for the device process of this index, or of one behind it, that has ended.
    fn device_ended(&self, index: usize) -> Error {
        let processes = self.spec().device_processes();
        let mut later = processes.iter().skip(index);
        let alive = |process: &&Option<&str>| {
            let id = ProcessId::load(&self.dir.device(**process).pid());
            id.is_some_and(ProcessId::is_alive)
        };
        let ended = later.find(|process| !alive(process));
        crate::device::ended(&self.dir, ended.copied().flatten())
    }
}

fn panicked(node: &Node) -> Broken {
    Broken::Panicked {
        node: node.name().to_owned(),
    }
}

fn wait(
    nodes: &mut [Watched<'_>],
    devices: &[(String, Process)],
    deadline: &Deadline,
    device_ended: impl Fn(usize) -> Error,
) -> Option<Broken> {
    loop {
        for one in nodes.iter_mut() {
            match one.events.as_mut().map(Events::take) {
                Some(Ok(events)) if events.iter().any(is_panic) => return Some(panicked(one.node)),
                // The end of QEMU is noticed by its process.
                Some(Err(_)) => one.events = None,
                _ => {}
            }
        }
        let mut watched: Vec<(BorrowedFd<'_>, PollFlags)> = Vec::new();
        let processes = nodes.iter().map(|one| one.qemu.as_fd());
        let processes = processes.chain(devices.iter().map(|(_, process)| process.as_fd()));
        watched.extend(processes.map(|process| (process, PollFlags::IN)));
        let events = nodes.iter().filter_map(|one| one.events.as_ref());
        watched.extend(events.map(|events| (events.as_fd(), PollFlags::IN)));
        match deadline.first_ready(&watched) {
            Err(Stop::Cancelled | Stop::Timeout) => return None,
            Ok(index) if index < nodes.len() => {
                return Some(Broken::Failed(nodes[index].node.ended()))
            }
            Ok(index) if index < nodes.len() + devices.len() => {
                return Some(Broken::Failed(device_ended(index - nodes.len())))
            }
            Ok(_) => {}
        }
    }
}

fn is_panic(event: &Event) -> bool {
    matches!(event, Event::GuestPanicked)
}
