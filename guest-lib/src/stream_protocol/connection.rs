//! One connection: its two halves, its timers, and its stage of life.
//!
//! ```text
//!   connect ─► Opening ──── Accept ────┐
//!                                      ▼       all sent and acknowledged,
//!   Open ────► Accepting ── any frame ─► Open ── all received ──► Open, ended
//!                │                     │                            │ closed
//!                └── time is over      ├── Reset, silence ─► Failed ▼
//!                                      └───────────────────► gone ◄─ Lingering
//! ```

use qnic_abi::stream::{Kind, Reason, StreamHeader, HEADER_BYTES, MAGIC};
use qnic_shared::timing::{Congestion, RoundTrip, Time, TimerId};

use crate::stream_protocol::address::{Address, Failure};
use crate::stream_protocol::budget::Budget;
use crate::stream_protocol::buffer::{ReceivedFrame, SendFrame};
use crate::stream_protocol::config::Config;
use crate::stream_protocol::receiver::Receiver;
use crate::stream_protocol::sender::{Departure, Malformed, Sender};

/// The stages of a connection's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// An Open is sent until the peer accepts.
    Opening,
    /// An Accept is sent until the peer confirms it.
    Accepting,
    /// Both sides know the connection.
    Open,
    /// It has ended, and the program has closed it; late frames are still answered.
    Lingering,
    /// It has failed; the program has yet to learn of it.
    Failed(Failure),
}

/// The timers of a connection.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// Repeats an Open, an Accept or frames that are not acknowledged, and asks a closed window.
    pub(crate) retransmit: Option<TimerId>,
    /// Sends an acknowledgement that is held back.
    pub(crate) ack: Option<TimerId>,
    /// Asks a peer that may be gone.
    pub(crate) silence: Option<TimerId>,
}

#[derive(Debug)]
pub(crate) struct Connection<S, R> {
    pub(crate) peer: Address,
    /// The connection's numbers at this side and at the peer; the peer's is zero until it is known.
    pub(crate) own: u64,
    pub(crate) theirs: u64,
    pub(crate) stage: Stage,
    /// Most bytes of data in a frame.
    pub(crate) payload: usize,
    pub(crate) sender: Sender<S>,
    /// Frames of the budget that the sender has.
    pub(crate) send_held: usize,
    pub(crate) receiver: Receiver<R>,
    pub(crate) round_trip: RoundTrip,
    pub(crate) congestion: Congestion,
    pub(crate) timers: Timers,
    /// When it began; then when the program closed it, or when it ended.
    pub(crate) opened_at: Time,
    pub(crate) left_at: Option<Time>,
    pub(crate) last_received: Time,
    /// When a frame was newly acknowledged, or given up: the timeout counts from here.
    pub(crate) progress_at: Time,
    /// The program has accepted it, and not closed it.
    pub(crate) is_accepted: bool,
    /// An Open or Accept, a Probe, or a Reset is to be sent.
    pub(crate) open_due: bool,
    pub(crate) probe_due: bool,
    pub(crate) reset_due: Option<Reason>,
    /// It is in the list of connections that may have frames to send.
    pub(crate) is_queued: bool,
    /// It is in the list of connections that the program has to look at.
    pub(crate) is_changed: bool,
}

impl<S: SendFrame, R: ReceivedFrame> Connection<S, R> {
    pub(crate) fn new(peer: Address, own: u64, theirs: u64, stage: Stage, now: Time) -> Self {
        Connection {
            peer,
            own,
            theirs,
            stage,
            payload: 0,
            sender: Sender::new(),
            send_held: 0,
            receiver: Receiver::new(),
            round_trip: RoundTrip::default(),
            congestion: Congestion::default(),
            timers: Timers::default(),
            opened_at: now,
            left_at: None,
            last_received: now,
            progress_at: now,
            is_accepted: false,
            open_due: true,
            probe_due: false,
            reset_due: None,
            is_queued: false,
            is_changed: false,
        }
    }

    /// Notes that the peer takes frames of so many bytes, the header included.
    pub(crate) fn set_frame_bytes(&mut self, bytes: usize) {
        self.payload = bytes.saturating_sub(HEADER_BYTES);
    }

    /// Returns true if both streams have arrived as a whole.
    pub(crate) fn is_complete(&self) -> bool {
        self.sender.is_done() && self.receiver.is_finished()
    }

    /// Returns true if bytes can be written that could not be before, as far as the window goes.
    pub(crate) fn is_writable(&self, share: usize) -> bool {
        self.stage == Stage::Open && !self.sender.is_ended() && self.sender.len() < share
    }

    fn has_room(&self) -> bool {
        self.congestion.room(self.sender.on_its_way()) > 0
    }

    /// Takes the acknowledgements of a header.
    pub(crate) fn acknowledge(
        &mut self,
        now: Time,
        header: &StreamHeader,
        config: &Config,
    ) -> Result<(), Malformed> {
        let timeout = self.round_trip.timeout(&config.retransmission, false);
        let trip = self.round_trip.smoothed();
        let changes = self.sender.acknowledge(now, header, trip, timeout)?;
        for _ in 0..changes.lost {
            self.congestion.lost(now, self.round_trip.typical());
        }
        if changes.acknowledged.frames > 0 {
            self.progress_at = now;
            self.round_trip.progress();
            if changes.acknowledged.trip != u64::MAX {
                self.round_trip.sample(changes.acknowledged.trip);
            }
            let used = self.sender.on_its_way();
            self.congestion
                .sample(now, changes.acknowledged, used, config.queue_delay);
        }
        Ok(())
    }

    /// How long to wait for an acknowledgement of the oldest frame, in nanoseconds.
    pub(crate) fn timeout(&self, config: &Config) -> u64 {
        self.round_trip.timeout(&config.retransmission, true)
    }

    /// The kind of the next frame, if one is to be sent.
    pub(crate) fn next_kind(&self) -> Option<Kind> {
        if self.reset_due.is_some() {
            return Some(Kind::Reset);
        }
        match self.stage {
            Stage::Failed(_) => None,
            Stage::Opening => self.open_due.then_some(Kind::Open),
            Stage::Accepting => self.open_due.then_some(Kind::Accept),
            Stage::Open | Stage::Lingering => {
                if self.sender.has_departure(self.has_room()) {
                    Some(Kind::Data)
                } else if self.probe_due {
                    Some(Kind::Probe)
                } else {
                    self.receiver.must_ack().then_some(Kind::Ack)
                }
            }
        }
    }

    /// Makes a header of that kind. It acknowledges all frames that have come.
    pub(crate) fn header(&mut self, kind: Kind) -> StreamHeader {
        let mut header = StreamHeader {
            magic: MAGIC.into(),
            kind: kind as u8,
            to: self.theirs.into(),
            from: self.own.into(),
            ..StreamHeader::default()
        };
        match kind {
            Kind::Reset => {
                let reason = self.reset_due.take().unwrap_or(Reason::Aborted);
                header.detail = (reason as u32).into();
                return header;
            }
            Kind::Open | Kind::Accept => {
                self.open_due = false;
                header.detail = ((self.payload + HEADER_BYTES) as u32).into();
            }
            Kind::Probe => self.probe_due = false,
            Kind::Data | Kind::Ack => {}
        }
        self.receiver.tell(&mut header);
        header
    }

    /// The next Data frame to send, which then is on its way.
    pub(crate) fn depart(&mut self, now: Time) -> Option<Departure> {
        let has_room = self.has_room();
        self.sender.depart(now, has_room)
    }

    /// Gives the budget back the frames that the sender does not need any more.
    pub(crate) fn settle_budget(&mut self, send: &mut Budget) {
        let needs = self.sender.len().min(self.send_held);
        self.send_held = send.change(self.send_held, needs);
    }

    /// Drops all frames except those that can be read, for good.
    pub(crate) fn stop(&mut self, receive: &mut Budget, send: &mut Budget) {
        self.sender.clear();
        self.send_held = send.change(self.send_held, 0);
        self.receiver.stop(receive);
        self.open_due = false;
        self.probe_due = false;
    }
}
