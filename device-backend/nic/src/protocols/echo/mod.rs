//! A protocol for tests, and the walk-through of CONTRIBUTING.md: a command asks another
//! NIC to send a value back. The request is of class Unreliable, and has the value in its
//! body and as its payload. The answering NIC sends the answer in a turn of its own, as no process
//! there takes part.

mod abi;

use std::collections::{HashMap, VecDeque};

use qnic_abi::wire::Frame;
use qnic_abi::{Status, VniId};

use self::abi::{Echo as EchoFrame, EchoCommand, REQUEST, RESPONSE};
use super::protocol::{Context, Outgoing, Protocol, Received, Source, Turn};
use crate::core::{Counter, Fetched};
use crate::env::Host;
use crate::frame::Arrival;
use crate::ids::{OperationId, PeerIndex};
use crate::stages::Kind;
use crate::transport::Window;
use qnic_abi::command::CommandBody;

/// Answers that wait at most; a request beyond is lost, as its class allows.
const ANSWERS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Echo {
    /// Values that were not answered.
    values: HashMap<u64, u64>,
    /// Answers that wait for a turn: value and operation.
    answers: VecDeque<(PeerIndex, u64, u64)>,
}

impl Protocol for Echo {
    const OPERATIONS: Kind = Kind::Names;
    const OPCODES: &'static [u8] = &[EchoCommand::OPCODE];
    const KINDS: &'static [u8] = &[REQUEST, RESPONSE];

    fn is_well_formed(frame: &Frame) -> bool {
        frame.is::<EchoFrame<REQUEST>>() || frame.is::<EchoFrame<RESPONSE>>()
    }

    fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        let command: EchoCommand = fetched.descriptor.read();
        if command.reserved.iter().any(|word| word.get() != 0) {
            return Err(Status::Malformed);
        }
        let issuer = (vni, Self::ID);
        let header = &command.header;
        if let Some(id) = cx
            .core
            .begin(issuer, (Counter::Reads, false), header, fetched.peer)
        {
            self.values.insert(id.0, command.value.get());
            cx.core.set_ready(id, true);
        }
        Ok(())
    }

    fn turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        _budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let Some(peer) = cx.core.operation(id).map(|operation| operation.peer) else {
            return Turn::Idle;
        };
        // No session, no frame of class Unreliable.
        if !cx.transport.has_request_room(peer) {
            return Turn::Blocked(peer, Window::Requests);
        }
        let value = self.values[&id.0];
        let body = EchoFrame::<REQUEST> {
            value: value.into(),
        };
        outgoing.begin(peer, &body);
        outgoing.frame.envelope.operation = id.0.into();
        outgoing.inline[0] = value.to_le();
        outgoing.source = Source::Inline(0);
        outgoing.length = 8;
        Turn::Send
    }

    fn update<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        cx.core.set_ready(id, true);
    }

    fn nic_turn<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let Some((peer, value, operation)) = self.answers.pop_front() else {
            return Turn::Idle;
        };
        let value = value.into();
        outgoing.begin(peer, &EchoFrame::<RESPONSE> { value });
        outgoing.frame.envelope.operation = operation.into();
        Turn::Send
    }

    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        let body: EchoFrame<REQUEST> = arrival.body();
        let (id, value) = (arrival.operation(), body.value.get());
        if arrival.frame.envelope.kind == REQUEST {
            let mut payload = [0; 8];
            let whole = arrival.payload.len() == 8 && arrival.payload.read(&mut payload).is_ok();
            let full = self.answers.len() >= ANSWERS;
            if full || !whole || payload != value.to_le_bytes() {
                return Received::Done;
            }
            self.answers.push_back((arrival.peer, value, id.0));
            cx.core.schedule_nic(Self::ID);
        } else if cx.core.operation_with(id, Self::ID, arrival.peer).is_some()
            && self.values.remove(&id.0) == Some(value)
        {
            cx.core.finish(cx.host, id, Status::Ok);
        }
        Received::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Net, Party};
    use crate::Limits;
    use qnic_abi::Port;

    #[test]
    fn a_value_comes_back() {
        let net = Net::new(2, 64, 4, &Limits::default());
        let process = Party::register(&net, 0, VniId(1), Port(9), 0).unwrap();
        for expected in 1..=3 {
            let mut echo = EchoCommand::command();
            echo.header.remote_node = 1.into();
            echo.value = (expected * 1000).into();
            process.post(&echo.descriptor());
            net.run();
            assert_eq!(process.done(), (0, expected));
        }
        let mut wrong = EchoCommand::command();
        wrong.reserved[5] = 1.into();
        process.post(&wrong.descriptor());
        net.run();
        assert_eq!(process.errors(), [(3, Status::Malformed)]);
    }
}
