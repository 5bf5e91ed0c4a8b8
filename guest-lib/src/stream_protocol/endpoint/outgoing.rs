//! The next frame to send: connections take turns, one frame each.

use qnic_abi::stream::{Kind, StreamFlags, StreamHeader, HEADER_BYTES};
use qnic_shared::timing::Time;
use zerocopy::IntoBytes;

use super::table::Endpoint;
use crate::stream_protocol::address::{Address, ConnectionId};
use crate::stream_protocol::buffer::{ReceivedFrame, SendFrame};
use crate::stream_protocol::connection::Stage;
use crate::stream_protocol::sender::Departure;

/// A frame to send.
#[derive(Debug)]
pub struct Transmit<'a, S> {
    /// Its destination.
    pub to: Address,
    /// The header in front of the data.
    pub header: [u8; HEADER_BYTES],
    /// The frame that holds the data, and the bytes of data; `None` if there is no data.
    pub data: Option<(&'a mut S, usize)>,
}

impl<S: SendFrame, R: ReceivedFrame> Endpoint<S, R> {
    /// The next frame to send; `None` if there is none now. The returned frame counts as
    /// sent, so the caller needs a free frame at hand for a header without data.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit<'_, S>> {
        if let Some((to, header)) = self.answers.pop_front() {
            self.counters.frames_sent += 1;
            return Some(Transmit {
                to,
                header: bytes(&header),
                data: None,
            });
        }
        loop {
            let (id, kind) = self.next_turn()?;
            let departure = match kind {
                Kind::Data => self.depart(now, id),
                _ => None,
            };
            if kind == Kind::Data && departure.is_none() {
                // The earlier copy of the frame has not left yet.
                continue;
            }
            let connection = self.get_mut(id)?;
            let to = connection.peer;
            let mut header = connection.header(kind);
            self.counters.frames_sent += 1;
            let Some(departure) = departure else {
                self.after_control(now, id, kind);
                return Some(Transmit {
                    to,
                    header: bytes(&header),
                    data: None,
                });
            };
            header.number = departure.number.into();
            if departure.is_last {
                header.flags = StreamFlags::END.bits();
            }
            let data = self.get_mut(id)?.sender.frame(departure.number);
            return Some(Transmit {
                to,
                header: bytes(&header),
                data,
            });
        }
    }

    /// Sends the next Data frame of a connection.
    fn depart(&mut self, now: Time, id: ConnectionId) -> Option<Departure> {
        let departure = self.get_mut(id)?.depart(now);
        if let Some(departure) = departure {
            self.counters.data_frames_sent += 1;
            self.counters.data_frames_resent += u64::from(departure.again);
        }
        self.watch(now, id);
        self.schedule(id);
        departure
    }

    /// The next connection that has a frame to send, and its kind.
    fn next_turn(&mut self) -> Option<(ConnectionId, Kind)> {
        while let Some(id) = self.queue.pop_front() {
            if let Some(connection) = self.get_mut(id) {
                connection.is_queued = false;
                if let Some(kind) = connection.next_kind() {
                    return Some((id, kind));
                }
            }
        }
        None
    }

    /// A frame without data was sent.
    fn after_control(&mut self, now: Time, id: ConnectionId, kind: Kind) {
        let Some(connection) = self.get(id) else {
            return;
        };
        match connection.stage {
            Stage::Failed(_) if kind == Kind::Reset => self.remove(id),
            _ => {
                self.watch(now, id);
                self.schedule(id);
            }
        }
    }
}

fn bytes(header: &StreamHeader) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes.copy_from_slice(header.as_bytes());
    bytes
}
