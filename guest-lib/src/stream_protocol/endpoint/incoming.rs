//! Frames that come in.

use qnic_abi::stream::{Kind, Reason, StreamFlags, StreamHeader, HEADER_BYTES, MAGIC};
use qnic_abi::NodeId;
use qnic_shared::timing::Time;
use zerocopy::FromBytes;

use super::table::{Alarm, Changed, Endpoint, Parts};
use crate::stream_protocol::address::{Address, ConnectionId, Failure};
use crate::stream_protocol::buffer::{ReceivedFrame, SendFrame};
use crate::stream_protocol::connection::Stage;
use crate::stream_protocol::receiver::Arrival;

/// Answers to frames of unknown connections that wait to be sent.
const ANSWERS: usize = 64;

impl<S: SendFrame, R: ReceivedFrame> Endpoint<S, R> {
    /// Takes a frame that came from this address, and checks it. One without bytes says that no process has
    /// that address. Call [`Endpoint::poll_transmit`] and [`Endpoint::poll_changed`] next.
    pub fn handle_frame(&mut self, now: Time, from: Address, frame: R) {
        if frame.length() == 0 {
            return self.handle_absence(from);
        }
        let mut bytes = [0; HEADER_BYTES];
        let Some(data) = frame.length().checked_sub(HEADER_BYTES) else {
            self.counters.malformed_frames += 1;
            return;
        };
        frame.copy_out(0, &mut bytes);
        let header = StreamHeader::read_from_bytes(&bytes).unwrap_or_default();
        let Some(kind) = header.check(data) else {
            self.counters.malformed_frames += 1;
            return;
        };
        let id = ConnectionId(header.to.get());
        if kind == Kind::Open {
            self.handle_open(now, from, &header);
        } else if self.is_of_connection(id, from, kind, &header) {
            self.counters.frames_received += 1;
            self.handle_known(now, id, kind, &header, frame);
        }
    }

    /// No process has this address: what is being opened to it is refused. Connections that are open end by
    /// their keep-alive: the frame may be older than the process that has the address now.
    #[cold]
    fn handle_absence(&mut self, from: Address) {
        for id in self.opening_to(from) {
            self.fail(id, Failure::Refused);
        }
    }

    /// Returns true if a frame belongs to a known connection. If not, the peer
    /// is told, unless the connection has ended and only its last Ack was lost.
    fn is_of_connection(
        &mut self,
        id: ConnectionId,
        from: Address,
        kind: Kind,
        header: &StreamHeader,
    ) -> bool {
        let theirs = header.from.get();
        let (known, is_unknown) = match self.get(id) {
            None => (false, true),
            Some(connection) if connection.peer != from => (false, false),
            Some(connection) => match (kind, connection.stage) {
                (_, Stage::Failed(_)) => (false, true),
                (Kind::Accept, Stage::Opening) => (true, false),
                (Kind::Reset, _) if theirs == 0 || connection.theirs == 0 => (true, false),
                _ => {
                    let same = connection.theirs == theirs;
                    (same, !same && kind == Kind::Accept)
                }
            },
        };
        if !known {
            self.counters.stale_frames += 1;
        }
        if is_unknown && kind != Kind::Reset {
            let last_ack = self.last_ack(id, from);
            match last_ack.filter(|ack| ack.to.get() == theirs) {
                None => self.refuse(from, theirs, Reason::Unknown),
                // Only what asks for an answer has one: two ends that both have gone would
                // answer each other for ever.
                Some(ack) if matches!(kind, Kind::Data | Kind::Probe) => self.answer(from, ack),
                Some(_) => {}
            }
        }
        known
    }

    /// Has a Reset sent for a connection of a peer that is not known here.
    fn refuse(&mut self, to: Address, theirs: u64, reason: Reason) {
        let header = StreamHeader {
            magic: MAGIC.into(),
            kind: Kind::Reset as u8,
            to: theirs.into(),
            detail: (reason as u32).into(),
            ..StreamHeader::default()
        };
        self.answer(to, header);
    }

    fn answer(&mut self, to: Address, header: StreamHeader) {
        match self.answers.len() < ANSWERS {
            true => self.answers.push_back((to, header)),
            false => self.counters.resets_dropped += 1,
        }
    }

    fn handle_open(&mut self, now: Time, from: Address, header: &StreamHeader) {
        let theirs = header.from.get();
        if let Some(id) = self.pending.get(&(from, theirs)).copied() {
            // The Accept was lost, or this one is late.
            if let Some(connection) = self.get_mut(id) {
                connection.open_due = connection.stage == Stage::Accepting;
            }
            self.schedule(id);
            return;
        }
        let of_node = self.pending_of(from.node);
        let refusal = match self.is_listening {
            false => Some(Reason::Refused),
            true if of_node >= self.config.backlog_per_node => Some(Reason::Full),
            true if self.pending.len() >= self.config.backlog => Some(Reason::Full),
            true => None,
        };
        let inserted = match refusal {
            Some(_) => None,
            None => self.insert(now, from, theirs, Stage::Accepting),
        };
        let Some(id) = inserted else {
            self.counters.opens_refused += 1;
            self.refuse(from, theirs, refusal.unwrap_or(Reason::Full));
            return;
        };
        self.counters.frames_received += 1;
        self.pending.insert((from, theirs), id);
        if let Some((connection, config)) = self.configured(id) {
            let bytes = (header.detail.get() as usize).min(config.frame_bytes);
            connection.set_frame_bytes(bytes);
            // No frame was sent that it could acknowledge: it only brings the window.
            let _ = connection.acknowledge(now, header, config);
        }
        self.begin(now, id);
    }

    /// The number of connections of a node that the program has not accepted.
    fn pending_of(&self, node: NodeId) -> usize {
        let address = |port| Address { node, port };
        let range = (address(0), 0)..=(address(u16::MAX), u64::MAX);
        self.pending.range(range).count()
    }

    /// Takes a frame of a known connection, from its peer.
    fn handle_known(
        &mut self,
        now: Time,
        id: ConnectionId,
        kind: Kind,
        header: &StreamHeader,
        frame: R,
    ) {
        if kind == Kind::Reset {
            let reason = Reason::try_from(header.detail.get()).unwrap_or(Reason::Unknown);
            return self.fail(id, Failure::from(reason));
        }
        let Some((connection, config)) = self.configured(id) else {
            return;
        };
        if connection.acknowledge(now, header, config).is_err() {
            self.counters.malformed_frames += 1;
            return;
        }
        connection.last_received = now;
        match kind {
            Kind::Accept => {
                connection.receiver.ack_immediately();
                if connection.stage == Stage::Opening {
                    connection.theirs = header.from.get();
                    let own = connection.payload + HEADER_BYTES;
                    connection.set_frame_bytes(own.min(header.detail.get() as usize));
                    self.opened(now, id);
                }
            }
            Kind::Probe => connection.receiver.ack_immediately(),
            _ => {}
        }
        self.confirm(now, id);
        if kind == Kind::Data {
            self.handle_data(id, header, frame);
        }
        self.after_frame(now, id);
    }

    /// Both sides know of the connection.
    fn opened(&mut self, now: Time, id: ConnectionId) {
        let Some((connection, config)) = self.configured(id) else {
            return;
        };
        connection.stage = Stage::Open;
        connection.open_due = false;
        let at = now.after(config.keep_alive);
        let retransmit = connection.timers.retransmit.take();
        if let Some(timer) = retransmit {
            self.timers.check_out(timer);
        }
        self.arm(id, at, Alarm::Silence(id), |timers| &mut timers.silence);
        self.change(id);
    }

    /// Any frame of the peer confirms an Accept.
    fn confirm(&mut self, now: Time, id: ConnectionId) {
        if self.get(id).map(|connection| connection.stage) != Some(Stage::Accepting) {
            return;
        }
        self.opened(now, id);
        self.incoming.push_back(id);
        if !self.incoming_changed {
            self.incoming_changed = true;
            self.changed.push_back(Changed::Incoming);
        }
    }

    fn handle_data(&mut self, id: ConnectionId, header: &StreamHeader, frame: R) {
        let Some(Parts {
            connection,
            receive,
            receive_share,
            ..
        }) = self.parts(id)
        else {
            return;
        };
        let is_last = header.flags & StreamFlags::END.bits() != 0;
        let has_bytes = frame.length() > HEADER_BYTES;
        let receiver = &mut connection.receiver;
        let arrival = receiver.receive(header.number.get(), is_last, frame);
        if receiver.is_finished() {
            receiver.grant(receive, receive_share);
        }
        let is_left = connection.left_at.is_some();
        match arrival {
            // The program has closed the connection, so these bytes cannot be read.
            Arrival::New if is_left && has_bytes => self.reset(id, Reason::Aborted),
            Arrival::New => self.change(id),
            Arrival::Repeated => self.counters.repeated_frames += 1,
            Arrival::Outside => self.counters.frames_outside += 1,
            Arrival::Malformed => self.counters.malformed_frames += 1,
        }
    }

    /// The consequences of a frame: room for writers, acknowledgements, timers, the end.
    fn after_frame(&mut self, now: Time, id: ConnectionId) {
        let Some(Parts {
            connection,
            send,
            send_share,
            config,
            ..
        }) = self.parts(id)
        else {
            return;
        };
        let before = connection.send_held;
        connection.settle_budget(send);
        let has_room = connection.send_held < before && connection.is_writable(send_share);
        let is_empty = connection.sender.len() == 0 && before > 0;
        let owes_ack = connection.receiver.owes_ack() && !connection.receiver.must_ack();
        let ack_at = now.after(config.retransmission.ack_delay);
        if has_room || is_empty {
            self.change(id);
        }
        if owes_ack {
            self.arm(id, ack_at, Alarm::Ack(id), |timers| &mut timers.ack);
        }
        self.watch(now, id);
        self.schedule(id);
        self.settle(id);
    }
}
