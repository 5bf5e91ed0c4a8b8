//! What is injected into queue pairs from outside, and what their NIC says of them.

use qnic_abi::verbs::{Event, State, Transport};

use super::queue_pair::{Failure, QueuePair};
use super::requester::Halt;
use super::{Context, Verbs};
use crate::env::Host;
use crate::injection::QueuePairFaults;
use crate::table::Table;

impl Verbs {
    /// Injects faults into a queue pair, beside those that it still has. Returns false if there is none
    /// of that number, or if it has failed: nothing can happen to it.
    pub(in crate::protocols) fn inject<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        number: u32,
        faults: QueuePairFaults,
    ) -> bool {
        let found = self.queue_pairs.get_mut(&number);
        let Some(qp) = found.filter(|qp| qp.state != State::Failed) else {
            return false;
        };
        let own = &mut qp.faults;
        own.not_ready = own.not_ready.saturating_add(faults.not_ready);
        own.denied = own.denied.saturating_add(faults.denied);
        if faults.fails {
            let failure = Failure {
                event: Some(Event::Fatal),
                ..Failure::default()
            };
            qp.fail(cx, &mut self.tables, failure);
        }
        true
    }

    /// The queue pairs, for people.
    pub(in crate::protocols) fn table(&self) -> Table {
        let columns = [
            "queue pair",
            "VNI",
            "type",
            "state",
            "node",
            "peer",
            "under way",
            "depth",
            "reads",
            "waits for",
            "faults",
        ];
        Table::new(&columns, self.queue_pairs.values().map(|qp| qp.cells()))
    }
}

impl QueuePair {
    /// Returns true if a message is to find no receive.
    pub(super) fn lacks_receive(&mut self) -> bool {
        take_one(&mut self.faults.not_ready)
    }

    /// Returns true if memory of this side is to be denied to the peer.
    pub(super) fn denies(&mut self) -> bool {
        take_one(&mut self.faults.denied)
    }

    fn cells(&self) -> Vec<String> {
        let has_peer = self.transport != Transport::Datagram;
        let connected =
            has_peer && !matches!(self.state, State::Reset | State::Init | State::Failed);
        let (node, peer) = match connected {
            true => (
                self.attributes.node.0.to_string(),
                self.attributes.peer_qp.to_string(),
            ),
            false => ("-".to_owned(), "-".to_owned()),
        };
        let waits = match (self.requester.halt, self.responder.waits) {
            (Some(Halt::Until(_)), _) => "timer",
            (Some(Halt::Page(_)), _) => "page there",
            (None, Some(_)) => "page here",
            (Some(Halt::Seek), _) => "session",
            (None, None) => "-",
        };
        vec![
            self.number.to_string(),
            self.vni.0.to_string(),
            match self.transport {
                Transport::Reliable => "RC",
                Transport::Unreliable => "UC",
                Transport::Datagram => "UD",
            }
            .to_owned(),
            name_of(self.state).to_owned(),
            node,
            peer,
            self.requester.under_way().to_string(),
            self.requester.depth().to_string(),
            self.responder.reads.len().to_string(),
            waits.to_owned(),
            self.faults.to_string(),
        ]
    }
}

fn take_one(count: &mut u32) -> bool {
    let left = count.checked_sub(1);
    *count = left.unwrap_or(0);
    left.is_some()
}

/// A state, as programs know it.
fn name_of(state: State) -> &'static str {
    match state {
        State::Reset => "RESET",
        State::Init => "INIT",
        State::ReadyToReceive => "RTR",
        State::ReadyToSend => "RTS",
        State::Draining => "SQD",
        State::SendError => "SQE",
        State::Failed => "ERR",
    }
}
