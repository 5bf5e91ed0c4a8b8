//! Traces of NICs: what [`crate::trace`] asks the engine to do.

use qnic_nic::trace::{Record, Taken};

use serde::Serialize;

use super::Engine;

/// Records that a NIC has room for, from one look to the next.
const ROOM: usize = 1 << 15;

/// A NIC that is traced.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Traced {
    /// The number of its engine.
    #[serde(skip)]
    pub(crate) engine: usize,
    #[serde(skip)]
    pub(crate) slot: usize,
    pub(crate) node: u16,
    pub(crate) name: String,
}

/// A buffer of 32,768 records, 1.5 MiB.
pub(crate) fn empty_buffer() -> Vec<Record> {
    Vec::with_capacity(ROOM)
}

impl Engine {
    /// Begins to trace the NICs of `nodes`, as far as they are here; of all without it. `engine` is
    /// the number of this engine.
    ///
    /// # Errors
    /// One of them is traced already; then none begins.
    pub(crate) fn begin_traces(
        &mut self,
        nodes: Option<&[String]>,
        sample: u32,
        engine: usize,
    ) -> Result<Vec<Traced>, String> {
        let mut begun: Vec<Traced> = Vec::new();
        for port in &self.nics {
            let (slot, name) = (port.slot, port.name.clone());
            let node = self.fabric.nic(slot).geometry().node.0;
            if nodes.is_some_and(|nodes| !nodes.contains(&name)) {
                continue;
            }
            if !self
                .fabric
                .nic_mut(slot)
                .begin_trace(sample, empty_buffer())
            {
                let slots: Vec<_> = begun.iter().map(|traced| traced.slot).collect();
                self.end_traces(&slots);
                return Err(format!("node {node} ({name}) is traced already"));
            }
            begun.push(Traced {
                engine,
                slot,
                node,
                name,
            });
        }
        Ok(begun)
    }

    /// What these NICs have noted since the last look; each gets an empty buffer.
    pub(crate) fn take_traces(&mut self, slots: Vec<(usize, Vec<Record>)>) -> Vec<Taken> {
        let now = self.now();
        let fabric = &mut self.fabric;
        let taken = slots.into_iter().map(|(slot, buffer)| {
            fabric.with(slot, now, |_, nic, host, _| {
                nic.trace_load(host);
                nic.take_trace(buffer)
            })
        });
        taken.collect()
    }

    /// These NICs are not traced any more.
    pub(crate) fn end_traces(&mut self, slots: &[usize]) {
        for slot in slots {
            self.fabric.nic_mut(*slot).end_trace();
        }
    }
}
