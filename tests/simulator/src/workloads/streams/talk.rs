//! A connection of a stream worker: two streams, and what is still to be written and read.

use qnic::stream_protocol::{Address, ConnectionId, Error, Failure};
use qnic_abi::NodeId;

use super::oracle::{byte, Life, NUMBER};
use super::{End, StreamWorker};
use crate::schedule::{lock, trace};

/// Longest stream in bytes.
const LONGEST: u64 = 40_000;

/// Bytes that are written or read at a time, at most.
const CHUNK: u64 = 9_000;

/// A connection.
pub(super) struct Talk {
    pub(super) id: ConnectionId,
    /// This side has opened it.
    pub(super) is_own: bool,
    /// Slot of the peer, and its process, once that is known.
    pub(super) peer: usize,
    life: Option<Life>,
    since: u64,
    open: bool,
    /// What is written: its number, how many bytes it has, how many are written; it has ended.
    stream: u64,
    length: u64,
    written: u64,
    finished: bool,
    /// What is read: its first bytes, how many, and that it has ended.
    number: Vec<u8>,
    read: u64,
    ended: bool,
}

impl Talk {
    /// The number of what is read, once it has come.
    fn theirs(&self) -> Option<u64> {
        let number = self.number[..].try_into().ok();
        number.map(u64::from_le_bytes)
    }
}

/// What became of a connection.
enum Outcome {
    GoesOn,
    /// Both streams are where they belong.
    Done,
    Failed(Failure),
}

impl StreamWorker<'_> {
    /// A connection with the process at an address.
    pub(super) fn begin(&mut self, id: ConnectionId, with: Address, is_own: bool) {
        let peer = self.slot_of(with);
        let length =
            NUMBER as u64 + self.schedule.range(0..LONGEST) * u64::from(self.schedule.chance(800));
        let stream = lock(self.oracle).stream(self.life, peer);
        trace!(
            self.schedule,
            "stream worker {}: stream {stream} to {peer}, {length} bytes",
            self.life.0
        );
        self.talks.push(Talk {
            id,
            is_own,
            peer,
            life: None,
            since: self.schedule.now(),
            open: false,
            stream,
            length,
            written: 0,
            finished: false,
            number: Vec::new(),
            read: 0,
            ended: false,
        });
    }

    /// Lets all connections go on; those that are over are closed.
    pub(super) fn talk(&mut self, end: &mut End) {
        let mut talks = std::mem::take(&mut self.talks);
        talks.retain_mut(|talk| {
            let outcome = self.go_on(end, talk);
            let now = self.now();
            match outcome {
                Outcome::GoesOn => return true,
                Outcome::Done => {}
                Outcome::Failed(failure) => {
                    trace!(
                        self.schedule,
                        "stream worker {}: stream {} fails: {failure}",
                        self.life.0,
                        talk.stream
                    );
                    let streams = lock(self.oracle);
                    streams.failed(self.life.0, talk.peer, talk.since, failure);
                    drop(streams);
                    lock(self.oracle).gives_up(self.life.0, now.0);
                }
            }
            end.close(now, talk.id);
            false
        });
        self.talks = talks;
    }

    fn go_on(&self, end: &mut End, talk: &mut Talk) -> Outcome {
        let outcome = self.check(end, talk);
        if !matches!(outcome, Outcome::GoesOn) || !talk.open {
            return outcome;
        }
        let mut result = Ok(());
        if self.hurries() || self.schedule.chance(600) {
            result = self.write(end, talk);
        }
        // A worker that waits for room and does not read may wait for a peer that does the same.
        let goes_on = matches!(result, Ok(()) | Err(Error::WouldBlock));
        if goes_on && (self.hurries() || self.schedule.chance(500)) {
            result = self.read(end, talk);
        }
        match result {
            Ok(()) | Err(Error::WouldBlock) => {}
            Err(Error::Failed(failure)) => return Outcome::Failed(failure),
            Err(error) => panic!("stream worker {}: {error}", self.life.0),
        }
        match talk.finished && talk.ended && end.is_delivered(talk.id) == Ok(true) {
            true => Outcome::Done,
            false => Outcome::GoesOn,
        }
    }

    /// Looks whether it is open, or has failed, and whether that is told in time.
    fn check(&self, end: &mut End, talk: &mut Talk) -> Outcome {
        let now = self.schedule.now();
        match end.is_open(talk.id) {
            Ok(open) => {
                if open && !talk.open {
                    let node = NodeId(self.context.common.settings.slots[talk.peer] as u16);
                    // Now that frames have gone there and back, the route is known.
                    let bytes = self.pools.route_bytes(node);
                    end.limit_frame_bytes(talk.id, bytes);
                }
                talk.open = open;
            }
            // What has come before can still be read.
            Err(Error::Failed(failure)) => return Outcome::Failed(failure),
            Err(error) => panic!("stream worker {}: {error}", self.life.0),
        }
        let streams = lock(self.oracle);
        match talk.life {
            Some(life) => streams.lives(self.life.0, life, now),
            None if !talk.open => streams.opens(self.life.0, talk.since, now),
            None => {}
        }
        Outcome::GoesOn
    }

    fn write(&self, end: &mut End, talk: &mut Talk) -> Result<(), Error> {
        if talk.finished {
            return Ok(());
        }
        let chunk = self
            .schedule
            .range(1..CHUNK)
            .min(talk.length - talk.written);
        let places = talk.written..talk.written + chunk;
        let bytes: Vec<u8> = places.map(|place| byte(talk.stream, place)).collect();
        let written = match bytes.is_empty() {
            true => 0,
            false => end.write(talk.id, &bytes, || self.pools.output())?,
        };
        talk.written += written as u64;
        let mut streams = lock(self.oracle);
        streams.wrote(talk.stream, written);
        if talk.written == talk.length {
            end.finish(talk.id)?;
            talk.finished = true;
            streams.finished(talk.stream);
        }
        Ok(())
    }

    fn read(&self, end: &mut End, talk: &mut Talk) -> Result<(), Error> {
        if talk.ended {
            return Ok(());
        }
        let mut bytes = vec![0; self.schedule.range(1..CHUNK) as usize];
        let count = end.read(talk.id, &mut bytes)?;
        let mut streams = lock(self.oracle);
        if count == 0 {
            talk.ended = true;
            streams.ended(talk.theirs());
            return Ok(());
        }
        let bytes = &bytes[..count];
        let first = (NUMBER - talk.number.len()).min(count);
        talk.number.extend_from_slice(&bytes[..first]);
        let Some(number) = talk.theirs() else {
            talk.read += count as u64;
            return Ok(());
        };
        let mut count = count;
        if talk.life.is_none() {
            talk.life = Some(streams.claim(number, self.life, talk.peer));
            // With those that came before the last of the number.
            count += talk.read as usize;
        }
        for (place, found) in (talk.read..).zip(bytes) {
            let expected = byte(number, place);
            assert_eq!(*found, expected, "stream {number}: byte {place}");
        }
        talk.read += bytes.len() as u64;
        streams.got(number, count);
        Ok(())
    }
}
