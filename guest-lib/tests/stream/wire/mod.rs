//! Endpoints on a virtual wire: a seed decides everything, also time.

use std::collections::BTreeMap;

use fastrand::Rng;
use qnic::stream_protocol::{Address, Config, ConnectionId, Endpoint, Error};
use qnic_abi::stream::{Kind, StreamHeader, HEADER_BYTES};
use qnic_abi::NodeId;
use qnic_shared::timing::Time;
use zerocopy::FromBytes;

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

/// The faults of the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    /// Shares of frames, of 1,000.
    pub(crate) loss: u32,
    pub(crate) repeat: u32,
    /// Frames that take up to `delay` longer than others.
    pub(crate) reorder: u32,
    /// How long a frame takes, in nanoseconds.
    pub(crate) trip: u64,
    pub(crate) delay: u64,
}

pub(crate) const LOSSLESS: Faults = Faults {
    loss: 0,
    repeat: 0,
    reorder: 0,
    trip: 50_000,
    delay: 0,
};

type End = Endpoint<Vec<u8>, Vec<u8>>;

/// A frame on the wire.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    pub(crate) fn header(&self) -> StreamHeader {
        StreamHeader::read_from_bytes(&self.bytes[..HEADER_BYTES]).unwrap()
    }

    pub(crate) fn kind(&self) -> Kind {
        Kind::try_from(self.header().kind).unwrap()
    }
}

/// Endpoints, wire and clock.
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) ends: Vec<End>,
    pub(crate) rng: Rng,
    pub(crate) faults: Faults,
    /// Frames on the wire, by the time of their arrival.
    flying: BTreeMap<(Time, u64), Frame>,
    flown: u64,
    /// Ends that are cut off in both directions.
    pub(crate) cut: Vec<bool>,
    /// Ends that stand still: frames for them wait.
    pub(crate) asleep: Vec<bool>,
    /// Data frames that the wire has lost.
    pub(crate) lost_data: u64,
    /// Frames with an acknowledgement only that the wire has lost.
    pub(crate) lost_acks: u64,
    /// Frames on the wire of each kind.
    pub(crate) sent: BTreeMap<u8, u64>,
    /// The next frame for which this returns true is lost.
    pub(crate) lose_next: Option<fn(&Frame) -> bool>,
    /// Copies of all frames that were sent, if wanted.
    pub(crate) tape: Option<Vec<Frame>>,
}

pub(crate) fn address(end: usize) -> Address {
    Address {
        node: NodeId(end as u16),
        port: 2000,
    }
}

impl World {
    pub(crate) fn new(seed: u64, count: usize, config: &Config, faults: Faults) -> Self {
        let mut rng = Rng::with_seed(seed);
        let ends = (0..count)
            .map(|_| Endpoint::new(config.clone(), rng.u64(..)).unwrap())
            .collect();
        World {
            now: Time(SECOND),
            ends,
            rng,
            faults,
            flying: BTreeMap::new(),
            flown: 0,
            cut: vec![false; count],
            asleep: vec![false; count],
            lost_data: 0,
            lost_acks: 0,
            sent: BTreeMap::new(),
            lose_next: None,
            tape: None,
        }
    }

    fn per_mille(&mut self, share: u32) -> bool {
        self.rng.u32(0..1000) < share
    }

    /// Puts a frame on the wire.
    pub(crate) fn send(&mut self, frame: Frame) {
        *self.sent.entry(frame.kind() as u8).or_default() += 1;
        if let Some(tape) = &mut self.tape {
            tape.push(frame.clone());
        }
        let chosen = self.lose_next.is_some_and(|which| which(&frame));
        if chosen {
            self.lose_next = None;
        }
        let cut = self.cut[frame.from] || self.cut[frame.to];
        if chosen || cut || self.per_mille(self.faults.loss) {
            self.lost_data += u64::from(frame.kind() == Kind::Data);
            self.lost_acks += u64::from(frame.kind() == Kind::Ack);
            return;
        }
        let copies = 1 + usize::from(self.per_mille(self.faults.repeat));
        for _ in 0..copies {
            let mut trip = self.faults.trip;
            if self.per_mille(self.faults.reorder) {
                trip += self.rng.u64(0..=self.faults.delay);
            }
            self.flown += 1;
            let key = (self.now.after(trip), self.flown);
            self.flying.insert(key, frame.clone());
        }
    }

    /// Puts all frames that are to be sent on the wire.
    pub(crate) fn flush(&mut self) {
        for from in 0..self.ends.len() {
            if self.asleep[from] {
                continue;
            }
            while let Some(transmit) = self.ends[from].poll_transmit(self.now) {
                let mut bytes = transmit.header.to_vec();
                if let Some((data, length)) = transmit.data {
                    assert_eq!(data.len(), length);
                    bytes.extend_from_slice(data);
                }
                let to = usize::from(transmit.to.node.0);
                if to < self.cut.len() {
                    self.send(Frame { from, to, bytes });
                }
            }
        }
    }

    /// When the next frame arrives, or an end is to be called.
    fn next_event(&self) -> Option<Time> {
        let coming = self.flying.iter().find(|(_, to)| !self.asleep[to.to]);
        let arrival = coming.map(|((at, _), _)| *at);
        let awake = self.ends.iter().zip(&self.asleep);
        let deadlines = awake.filter_map(|(end, asleep)| end.deadline().filter(|_| !asleep));
        deadlines.chain(arrival).min()
    }

    /// Lets time pass up to the next frame or deadline; returns false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        self.step_until(Time(u64::MAX))
    }

    /// The same; also returns false if that is later than `end`.
    fn step_until(&mut self, end: Time) -> bool {
        self.flush();
        let Some(next) = self.next_event().filter(|next| *next <= end) else {
            return false;
        };
        self.now = self.now.max(next);
        self.arrive();
        for (end, asleep) in self.ends.iter_mut().zip(&self.asleep) {
            if *asleep {
                continue;
            }
            end.tick(self.now);
            while end.poll_changed().is_some() {}
        }
        self.flush();
        true
    }

    /// Delivers the frames that have arrived by now.
    pub(crate) fn arrive(&mut self) {
        while self.arrive_some(usize::MAX) {}
    }

    /// Delivers so many of the frames that have arrived by now; returns false if there were none.
    pub(crate) fn arrive_some(&mut self, count: usize) -> bool {
        let due = self.flying.range(..=(self.now, u64::MAX));
        let due = due.filter(|(_, frame)| !self.asleep[frame.to]);
        let keys: Vec<_> = due.map(|(key, _)| *key).take(count).collect();
        for frame in keys.iter().filter_map(|key| self.flying.remove(key)) {
            if !self.cut[frame.to] {
                let now = self.now;
                self.ends[frame.to].handle_frame(now, address(frame.from), frame.bytes);
            }
        }
        !keys.is_empty()
    }

    /// Lets time pass until a condition holds.
    ///
    /// # Panics
    /// If it does not within so many nanoseconds.
    pub(crate) fn drive(&mut self, limit: u64, mut done: impl FnMut(&mut World) -> bool) {
        let end = self.now.after(limit);
        while !done(self) {
            assert!(self.step(), "nothing will happen any more");
            assert!(self.now <= end, "it takes too long");
        }
    }

    /// Lets so many nanoseconds pass.
    pub(crate) fn pass(&mut self, nanoseconds: u64) {
        let end = self.now.after(nanoseconds);
        while self.now < end && self.step_until(end) {}
        self.now = self.now.max(end);
    }

    pub(crate) fn close(&mut self, end: usize, id: ConnectionId) {
        self.ends[end].close(self.now, id);
    }

    /// Lets time pass until no end has a connection any more.
    pub(crate) fn drive_until_gone(&mut self) {
        self.drive(10 * SECOND, |world| {
            world.ends.iter().all(|end| end.connections() == 0)
        });
    }

    /// End 0 connects to end 1, which accepts.
    pub(crate) fn connect(&mut self) -> (ConnectionId, ConnectionId) {
        self.ends[1].listen(true);
        let ours = self.ends[0].connect(self.now, address(1), 0).unwrap();
        let mut theirs = None;
        self.drive(20 * SECOND, |world| {
            theirs = theirs.or_else(|| world.ends[1].accept());
            theirs.is_some()
        });
        (ours, theirs.unwrap().0)
    }

    /// Writes as many bytes as are taken now.
    pub(crate) fn write(
        &mut self,
        end: usize,
        id: ConnectionId,
        bytes: &[u8],
    ) -> Result<usize, Error> {
        self.ends[end].write(id, bytes, || Some(Vec::new()))
    }

    /// Writes all and ends the stream; the other end reads all. Returns the bytes that it reads.
    pub(crate) fn transfer(
        &mut self,
        (from, writer): (usize, ConnectionId),
        (to, reader): (usize, ConnectionId),
        bytes: &[u8],
    ) -> Vec<u8> {
        let (mut written, mut read) = (0, Vec::new());
        self.drive(600 * SECOND, |world| {
            if written < bytes.len() {
                match world.write(from, writer, &bytes[written..]) {
                    Ok(count) => written += count,
                    Err(error) => assert_eq!(error, Error::WouldBlock),
                }
                if written == bytes.len() {
                    world.ends[from].finish(writer).unwrap();
                }
            }
            world.read(to, reader, &mut read)
        });
        read
    }

    /// Reads the bytes that have come; returns true at the end of the stream.
    pub(crate) fn read(&mut self, end: usize, id: ConnectionId, read: &mut Vec<u8>) -> bool {
        let mut buffer = [0; 10_000];
        loop {
            match self.ends[end].read(id, &mut buffer) {
                Ok(0) => return true,
                Ok(count) => read.extend_from_slice(&buffer[..count]),
                Err(error) => {
                    assert_eq!(error, Error::WouldBlock);
                    return false;
                }
            }
        }
    }
}

/// The byte at a position of a stream; it differs between streams and positions.
pub(crate) fn pattern(stream: u64, position: u64) -> u8 {
    let mixed = (stream << 40 ^ position).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

pub(crate) fn patterned(stream: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|position| pattern(stream, position))
        .collect()
}
