//! The side of the demo that is written to.

use std::time::Instant;

use anyhow::{bail, Context, Result};
use qnic::{Endpoint, Error, RemoteSegment};

use crate::demo::node::{import, register, take, Exported};
use crate::demo::options::{
    ANSWER_LIMIT, BALL, DATA, INITIATOR_PORT, PONG, REQUEST, REQUESTS, RESULT, RESULTS, SOURCE,
    START_LIMIT, TARGET_PORT,
};
use crate::demo::protocol::{
    ball, Outcome, Request, DATA_BYTES, GUARD, GUARD_BYTE, MESSAGE_BYTES, SPIN_SIZE,
};

struct Target {
    endpoint: Endpoint,
    data: Exported,
    requests: Exported,
    source: Exported,
    results: RemoteSegment,
    pong: RemoteSegment,
    notifications: u64,
}

/// Serves one initiator until it says that it is done.
pub(crate) fn run() -> Result<()> {
    let (_nic, endpoint) = register(TARGET_PORT.0)?;
    let data = Exported::new(&endpoint, DATA, DATA_BYTES)?;
    let requests = Exported::new(&endpoint, REQUESTS, qnic_abi::PAGE_SIZE)?;
    let source = Exported::new(&endpoint, SOURCE, DATA_BYTES)?;
    data.buffer.write(0, &vec![GUARD_BYTE; DATA_BYTES])?;
    // The first request names the initiator's node.
    take(&endpoint, REQUEST, START_LIMIT, "wait for the initiator")?;
    let node = requests.buffer.load_u32(0)? as u16;
    let import = |name| import(&endpoint, node, INITIATOR_PORT, name);
    let (results, pong) = (import(RESULTS)?, import(PONG)?);
    endpoint.write(&results, 0, b"").notify(RESULT).post()?;
    let mut target = Target {
        endpoint,
        data,
        requests,
        source,
        results,
        pong,
        notifications: 1,
    };
    while target.serve()? {}
    target.endpoint.flush().wait().context("finish")
}

impl Target {
    /// Serves one request; `false` after the last.
    fn serve(&mut self) -> Result<bool> {
        let request = self.endpoint.notification(REQUEST);
        // Between two requests the initiator may transfer for as long as it likes.
        wait_while_alive(
            || request.take(Some(ANSWER_LIMIT)),
            || {
                let byte = self.source.part(0, 1);
                self.endpoint.read(&self.pong, 0, byte).fenced()
            },
        )
        .context("wait for a request")?;
        self.notifications += 1;
        let message = self.requests.buffer.read_vec(0, MESSAGE_BYTES)?;
        let (sequence, request) = Request::from_bytes(&message)?;
        match request {
            Request::Verify { offset, length } => {
                self.verify(sequence, offset as usize, length as usize)?;
            }
            Request::Bounce {
                offset,
                length,
                rounds,
            } => self.bounce(offset as usize, length as usize, rounds)?,
            Request::Finish => return Ok(false),
        }
        Ok(true)
    }

    fn verify(&self, sequence: u64, offset: usize, length: usize) -> Result<()> {
        let guarded = length + 2 * GUARD;
        let range = self.data.buffer.read_vec(offset - GUARD, guarded)?;
        let (before, rest) = range.split_at(GUARD);
        let (arrived, after) = rest.split_at(length);
        let whole = |guard: &[u8]| guard.iter().all(|byte| *byte == GUARD_BYTE);
        let outcome = Outcome {
            sequence,
            checksum: crc32fast::hash(arrived),
            guards_whole: whole(before) && whole(after),
            notifications: self.notifications,
        };
        self.endpoint
            .write(&self.results, 0, &outcome.to_bytes()[..])
            .notify(RESULT)
            .post()?;
        Ok(())
    }

    /// Writes back what arrives, `rounds` times.
    fn bounce(&self, offset: usize, length: usize, rounds: u64) -> Result<()> {
        self.source.buffer.write(0, &vec![GUARD_BYTE; length])?;
        let last = offset + length - 1;
        self.endpoint
            .write(&self.results, 0, b"")
            .notify(RESULT)
            .post()?;
        for round in 0..rounds {
            if length <= SPIN_SIZE {
                spin_for(&self.data, last, ball(round))?;
                self.source.buffer.write(length - 1, &[ball(round)])?;
                self.endpoint
                    .write(&self.pong, offset as u64, self.source.part(0, length))
                    .post()?;
            } else {
                self.endpoint.notification(BALL).take(Some(ANSWER_LIMIT))?;
                let part = self.source.part(0, length);
                self.endpoint
                    .write(&self.pong, offset as u64, part)
                    .notify(BALL)
                    .post()?;
            }
        }
        Ok(self.endpoint.flush().writes().wait()?)
    }
}

/// Waits for a peer, again each time that `wait` ends with [`Error::TimedOut`], as long as
/// `ask` says that the peer is there.
fn wait_while_alive(
    mut wait: impl FnMut() -> qnic::Result<()>,
    mut ask: impl FnMut() -> qnic::Result<()>,
) -> qnic::Result<()> {
    loop {
        match wait() {
            Err(Error::TimedOut) => ask()?,
            ended => return ended,
        }
    }
}

/// Spins until the byte at `offset` is `wanted`.
pub(crate) fn spin_for(memory: &Exported, offset: usize, wanted: u8) -> Result<()> {
    let start = Instant::now();
    let mut byte = [0];
    let mut polls = 0u32;
    loop {
        memory.buffer.read(offset, &mut byte)?;
        if byte[0] == wanted {
            return Ok(());
        }
        polls = polls.wrapping_add(1);
        if polls % 256 == 0 {
            // Beyond the usual latency: the core may be the one that the NIC needs.
            std::thread::yield_now();
        }
        if polls % 65_536 == 0 && start.elapsed() > ANSWER_LIMIT {
            bail!(
                "byte {offset} is {} and not {wanted} after {ANSWER_LIMIT:?}",
                byte[0]
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_peer_is_waited_for_and_a_dead_one_is_not() {
        let mut waits = 0;
        let slow = || {
            waits += 1;
            match waits {
                1..=3 => Err(Error::TimedOut),
                _ => Ok(()),
            }
        };
        wait_while_alive(slow, || Ok(())).unwrap();
        assert_eq!(waits, 4);
        let gone = wait_while_alive(|| Err(Error::TimedOut), || Err(Error::EmptyMemory));
        assert!(matches!(gone, Err(Error::EmptyMemory)));
        let failed = wait_while_alive(|| Err(Error::DeviceGone), || panic!("it did not time out"));
        assert!(matches!(failed, Err(Error::DeviceGone)));
    }
}
