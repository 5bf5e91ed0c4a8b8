//! The sending half of a connection: frames on their way, and lost frames.
//!
//! ```text
//!        first                       next         limit of the peer's window
//!          │ lost │ here │ on its way │ waiting      │ waiting
//!          └───────────── queue ───────────────────────────────┘
//! ```
//! A frame counts as lost when some that were sent *later* have come, and it has been under way for
//! longer than the wire has been seen to hold a frame back (as in RACK, RFC 8985). It alone is then sent
//! again at once. The sender learns how far a wire reorders: when the peer reports frames that came
//! twice, the first copies had only been late. If no frame that was sent later comes at all, a timer
//! finds the loss ([`Sender::expire`]).
//!
//! An acknowledgement of a retransmitted frame is ambiguous: it may answer either copy (Karn's
//! algorithm). There is one exception. If it comes together with frames that were sent once, before the
//! second copy, the peer had only stood still. Then it answers the first copy, and no frame sent between
//! the two copies is overtaken.

use std::collections::VecDeque;

use qnic_abi::stream::StreamHeader;
use qnic_shared::timing::{Acknowledged, Time};

use crate::stream_protocol::buffer::SendFrame;

/// A frame may be lost when so many that were sent later have come.
const OVERTAKEN: u64 = 3;

/// The most that frames are late on any wire, in quarters of a round trip.
const LATEST: u64 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// Sent at that time, as the transmission of that number.
    OnItsWay(Time, u64),
    Lost,
    Received,
}

#[derive(Debug)]
struct Outgoing<S> {
    /// `None` if the peer has it, or it has no bytes and no frame.
    frame: Option<S>,
    length: usize,
    is_last: bool,
    state: State,
    sent_before: bool,
}

/// An acknowledgement of a frame that was never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The effects of an acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Changes {
    pub(crate) acknowledged: Acknowledged,
    pub(crate) lost: u32,
    /// The latest transmissions that have come: of frames that were sent once, and of other frames,
    /// of which an earlier copy may have come instead.
    once: u64,
    again: u64,
}

impl Changes {
    /// The latest transmission that has come for certain; 0 if there is none.
    fn newest(&self) -> u64 {
        match self.once {
            0 => self.again,
            once => once,
        }
    }
}

/// A frame to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) number: u64,
    pub(crate) is_last: bool,
    /// It was sent before.
    pub(crate) again: bool,
}

#[derive(Debug)]
pub(crate) struct Sender<S> {
    queue: VecDeque<Outgoing<S>>,
    first: u64,
    next: u64,
    limit: u64,
    on_its_way: u32,
    lost: u32,
    /// The number of transmissions, and the latest one that has come for certain.
    transmissions: u64,
    newest: u64,
    /// How late frames are, in quarters of a round trip; 0 if none was late yet.
    late: u64,
    /// Frames were sent again since the peer last reported frames that came twice.
    has_resent: bool,
    repeated: u32,
    is_ended: bool,
    /// One frame may be sent regardless of congestion control.
    probe: bool,
}

impl<S: SendFrame> Sender<S> {
    pub(crate) fn new() -> Self {
        Sender {
            queue: VecDeque::new(),
            first: 0,
            next: 0,
            limit: 0,
            on_its_way: 0,
            lost: 0,
            transmissions: 0,
            newest: 0,
            late: 0,
            has_resent: false,
            repeated: 0,
            is_ended: false,
            probe: false,
        }
    }

    /// The number of frames that the peer does not have.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if the peer has all frames, the end included.
    pub(crate) fn is_done(&self) -> bool {
        self.is_ended && self.queue.is_empty()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    pub(crate) fn on_its_way(&self) -> u32 {
        self.on_its_way
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.on_its_way = 0;
        self.lost = 0;
    }

    /// Free bytes of the last frame, if it was not sent and frames have `payload` bytes.
    fn room(&self, payload: usize) -> usize {
        match self.queue.back() {
            Some(last) if last.state == State::Waiting && last.frame.is_some() => {
                payload - last.length.min(payload)
            }
            _ => 0,
        }
    }

    /// Takes bytes into frames with `payload` bytes each; `allocate` may have none.
    /// Returns the number of bytes taken.
    pub(crate) fn write(
        &mut self,
        bytes: &[u8],
        payload: usize,
        mut allocate: impl FnMut(usize) -> Option<S>,
    ) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let mut room = self.room(payload);
            if room == 0 {
                let Some(frame) = allocate(self.queue.len()) else {
                    break;
                };
                self.push(Some(frame), false);
                room = payload;
            }
            let Some(last) = self.queue.back_mut() else {
                break;
            };
            let count = room.min(bytes.len() - done);
            if let Some(frame) = &mut last.frame {
                frame.put(last.length, &bytes[done..done + count]);
            }
            last.length += count;
            done += count;
        }
        done
    }

    /// Ends the stream: the last frame gets the mark if it was not sent yet.
    pub(crate) fn end(&mut self) {
        if self.is_ended {
            return;
        }
        self.is_ended = true;
        match self.queue.back_mut() {
            Some(last) if last.state == State::Waiting => last.is_last = true,
            _ => self.push(None, true),
        }
    }

    fn push(&mut self, frame: Option<S>, is_last: bool) {
        self.queue.push_back(Outgoing {
            frame,
            length: 0,
            is_last,
            state: State::Waiting,
            sent_before: false,
        });
    }

    /// Returns true if the window holds frames back, and no frame is on its way that
    /// would bring another window.
    pub(crate) fn is_shut(&self) -> bool {
        let unsent = self.next < self.first + self.queue.len() as u64;
        unsent && self.next >= self.limit && self.on_its_way == 0 && self.lost == 0
    }

    /// Returns true if a frame can be sent.
    pub(crate) fn has_departure(&self, has_room: bool) -> bool {
        let waiting = self.next < self.limit.min(self.first + self.queue.len() as u64);
        (has_room || self.probe) && (self.lost > 0 || waiting)
    }

    /// The next frame to send, which then is on its way.
    pub(crate) fn depart(&mut self, now: Time, has_room: bool) -> Option<Departure> {
        while self.has_departure(has_room) {
            let index = match self.lost {
                0 => (self.next - self.first) as usize,
                _ => self.queue.iter().position(|out| out.state == State::Lost)?,
            };
            let number = self.first + index as u64;
            self.transmissions += 1;
            let state = State::OnItsWay(now, self.transmissions);
            let out = self.queue.get_mut(index)?;
            let again = out.state == State::Lost;
            out.state = state;
            self.on_its_way += 1;
            match again {
                true => self.lost -= 1,
                false => self.next += 1,
            }
            if again && out.frame.as_ref().is_some_and(S::is_in_use) {
                // It has not left yet.
                continue;
            }
            out.sent_before = again;
            let is_last = out.is_last;
            self.has_resent |= again;
            self.probe = false;
            return Some(Departure {
                number,
                is_last,
                again,
            });
        }
        None
    }

    /// The memory of a kept frame, and its bytes of data; `None` if it has no data.
    pub(crate) fn frame(&mut self, number: u64) -> Option<(&mut S, usize)> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let out = self.queue.get_mut(index)?;
        Some((out.frame.as_mut()?, out.length))
    }

    /// Takes the acknowledgements of a header. `trip`: the smoothed round trip, in nanoseconds;
    /// `timeout`: a frame that was sent so long before one that has come is lost on any wire.
    pub(crate) fn acknowledge(
        &mut self,
        now: Time,
        header: &StreamHeader,
        trip: u64,
        timeout: u64,
    ) -> Result<Changes, Malformed> {
        let acknowledged = header.acknowledged.get();
        if acknowledged > self.next {
            return Err(Malformed);
        }
        let beyond = (self.next - acknowledged).saturating_sub(1);
        if highest(header) > beyond {
            return Err(Malformed);
        }
        let mut changes = Changes::default();
        if acknowledged < self.first {
            return Ok(changes);
        }
        self.limit = self
            .limit
            .max(acknowledged + u64::from(header.window.get()));
        let newest = self.newest;
        while self.first < acknowledged {
            self.arrived(0, now, &mut changes);
            self.queue.pop_front();
            self.first += 1;
        }
        for bit in 0..highest(header) as usize {
            if header.selective[bit / 64].get() >> (bit % 64) & 1 == 1 {
                self.arrived(bit + 1, now, &mut changes);
            }
        }
        self.note_repeated(header.repeated.get());
        self.newest = newest.max(changes.newest());
        if self.newest > newest {
            changes.lost = self.find_lost(now, trip, timeout);
        }
        Ok(changes)
    }

    /// Notes that the frame at `index` of the queue has come.
    fn arrived(&mut self, index: usize, now: Time, changes: &mut Changes) {
        let Some(out) = self.queue.get_mut(index) else {
            return;
        };
        match out.state {
            State::Received | State::Waiting => return,
            State::Lost => self.lost -= 1,
            State::OnItsWay(at, transmission) => {
                self.on_its_way -= 1;
                let latest = match out.sent_before {
                    true => &mut changes.again,
                    false => &mut changes.once,
                };
                if !out.sent_before && transmission > self.newest.max(*latest) {
                    changes.acknowledged.trip = now.0.saturating_sub(at.0);
                }
                *latest = transmission.max(*latest);
            }
        }
        out.state = State::Received;
        out.frame = None;
        changes.acknowledged.frames += 1;
    }

    /// The peer has had so many frames twice. If frames were sent again, some were late, not lost.
    fn note_repeated(&mut self, repeated: u32) {
        let more = repeated.wrapping_sub(self.repeated);
        if more == 0 || more > u32::MAX / 2 {
            return;
        }
        self.repeated = repeated;
        if self.has_resent {
            self.has_resent = false;
            self.late = (self.late * 2).clamp(1, LATEST);
        }
    }

    fn find_lost(&mut self, now: Time, trip: u64, timeout: u64) -> u32 {
        let mut found = 0;
        let wait = match self.late {
            0 => 0,
            quarters => trip.saturating_add(trip / 4 * quarters),
        };
        let sent = (self.next - self.first) as usize;
        for out in self.queue.iter_mut().take(sent) {
            let State::OnItsWay(at, transmission) = out.state else {
                continue;
            };
            let overtaken = transmission + OVERTAKEN <= self.newest && at.after(wait) <= now;
            if overtaken || (transmission < self.newest && at.after(timeout) <= now) {
                out.state = State::Lost;
                found += 1;
            }
        }
        self.on_its_way -= found;
        self.lost += found;
        found
    }

    /// When the oldest frame that is on its way was sent.
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.queue.iter().find_map(|out| match out.state {
            State::OnItsWay(at, _) => Some(at),
            _ => None,
        })
    }

    /// No frame was acknowledged for too long: the oldest is sent again. Returns false if it has not
    /// left yet, so that no frame is lost.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let on_its_way = |out: &&mut Outgoing<S>| matches!(out.state, State::OnItsWay(..));
        let Some(out) = self.queue.iter_mut().find(on_its_way) else {
            return false;
        };
        if out.frame.as_ref().is_some_and(S::is_in_use) {
            self.transmissions += 1;
            out.state = State::OnItsWay(now, self.transmissions);
            return false;
        }
        out.state = State::Lost;
        self.on_its_way -= 1;
        self.lost += 1;
        self.late /= 2;
        self.probe = true;
        true
    }
}

/// One more than the highest number that a header acknowledges behind the first gap.
fn highest(header: &StreamHeader) -> u64 {
    let mut highest = 0;
    for (start, word) in (0..).step_by(64).zip(&header.selective) {
        let bits = 64 - word.get().leading_zeros();
        if bits > 0 {
            highest = start + u64::from(bits);
        }
    }
    highest
}
