//! The queue from a tap on the engine thread to the thread that writes.
//!
//! A secret that an import presents (N2) does not get into it: those bytes become zeroes.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

use qnic_abi::directory::kind::IMPORT_REQUEST;
use qnic_abi::directory::ImportRequest;
use qnic_abi::wire::{Envelope, ENVELOPE_BYTES};
use qnic_abi::{NodeId, Secret};
use qnic_links::{Outcome, Tap, TapFlags, TapRecord};
use qnic_nic::Time;

/// Most frames that wait for the writer.
pub(super) const DEPTH: usize = 4096;

/// Most bytes of frames that wait for the writer.
const BYTES: usize = 16 << 20;

/// One direction of a link.
pub(super) type Link = (NodeId, NodeId);

/// Frames of each link that did not fit into the queue.
type Lost = BTreeMap<Link, u64>;

/// A frame as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) at: Time,
    pub(super) link: Link,
    pub(super) outcome: Outcome,
    pub(super) flags: TapFlags,
    /// Bytes of the frame.
    pub(super) length: u32,
    /// The first of them.
    pub(super) bytes: Vec<u8>,
    /// Frames of this link that the capture has lost since the record before.
    pub(super) gap: u64,
}

/// The end of the engine thread.
#[derive(Debug)]
pub(crate) struct QueueTap {
    records: SyncSender<Record>,
    snaplen: usize,
    /// Lost since the last record of each link.
    gaps: Lost,
    /// The engine takes the lock only when it loses a frame, the writer only at its end.
    lost: Arc<Mutex<Lost>>,
    waiting: Arc<AtomicUsize>,
}

impl Clone for QueueTap {
    /// The end of another engine thread, for the same writer.
    fn clone(&self) -> Self {
        QueueTap {
            records: self.records.clone(),
            snaplen: self.snaplen,
            gaps: Lost::new(),
            lost: self.lost.clone(),
            waiting: self.waiting.clone(),
        }
    }
}

/// The end of the writer.
#[derive(Debug)]
pub(super) struct Queue {
    records: Receiver<Record>,
    lost: Arc<Mutex<Lost>>,
    /// Bytes of the frames that wait. Relaxed, both ways: it bounds memory, the channel
    /// orders what is in it.
    waiting: Arc<AtomicUsize>,
}

/// A queue of [`DEPTH`] frames and [`BYTES`] bytes, each frame cut to `snaplen` bytes.
pub(super) fn channel(snaplen: u32) -> (QueueTap, Queue) {
    let (sender, records) = mpsc::sync_channel(DEPTH);
    let lost = Arc::new(Mutex::new(Lost::new()));
    let waiting = Arc::new(AtomicUsize::new(0));
    let tap = QueueTap {
        records: sender,
        snaplen: snaplen as usize,
        gaps: Lost::new(),
        lost: lost.clone(),
        waiting: waiting.clone(),
    };
    let queue = Queue {
        records,
        lost,
        waiting,
    };
    (tap, queue)
}

impl Queue {
    pub(super) fn try_next(&self) -> Result<Record, TryRecvError> {
        self.records.try_recv().inspect(|record| self.taken(record))
    }

    /// Waits for the next frame; `None` when the queue has ended.
    pub(super) fn next(&self) -> Option<Record> {
        let record = self.records.recv().ok();
        record.inspect(|record| self.taken(record))
    }

    fn taken(&self, record: &Record) {
        self.waiting
            .fetch_sub(record.bytes.len(), Ordering::Relaxed);
    }

    /// Frames of each link that were lost to the capture.
    pub(super) fn lost(&self) -> Lost {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone()
    }

    pub(super) fn lost_in_all(&self) -> u64 {
        self.lost().values().sum()
    }
}

impl Tap for QueueTap {
    fn record(&mut self, seen: &TapRecord<'_>) {
        let link = (seen.from, seen.to);
        let kept = seen.bytes.len().min(self.snaplen);
        if self.waiting.load(Ordering::Relaxed) + kept > BYTES {
            return self.lose(link);
        }
        let record = Record {
            at: seen.at,
            link,
            outcome: seen.outcome,
            flags: seen.flags,
            length: u32::try_from(seen.length).unwrap_or(u32::MAX),
            bytes: without_secret(&seen.bytes[..kept]),
            gap: self.gaps.get(&link).copied().unwrap_or(0),
        };
        // Before the writer can take it off.
        self.waiting.fetch_add(kept, Ordering::Relaxed);
        match self.records.try_send(record) {
            Ok(()) => {
                self.gaps.remove(&link);
            }
            Err(TrySendError::Full(_)) => {
                self.waiting.fetch_sub(kept, Ordering::Relaxed);
                self.lose(link);
            }
            // The capture is over; the tap is about to end.
            Err(TrySendError::Disconnected(_)) => {}
        }
    }
}

/// The bytes of a frame, without what an import presents.
fn without_secret(frame: &[u8]) -> Vec<u8> {
    const KIND: usize = offset_of!(Envelope, kind);
    const START: usize = ENVELOPE_BYTES + offset_of!(ImportRequest, secret);
    const END: usize = START + size_of::<Secret>();
    let mut bytes = frame.to_vec();
    if bytes.get(KIND) == Some(&IMPORT_REQUEST) && bytes.len() > START {
        let end = bytes.len().min(END);
        bytes[START..end].fill(0);
    }
    bytes
}

impl QueueTap {
    fn lose(&mut self, link: Link) {
        *self.gaps.entry(link).or_default() += 1;
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        *lost.entry(link).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::wire::Frame;

    fn tap_record(bytes: &[u8], to: u16) -> TapRecord<'_> {
        TapRecord {
            at: Time(5),
            from: NodeId(1),
            to: NodeId(to),
            outcome: Outcome::Passes,
            flags: TapFlags::empty(),
            bytes,
            length: bytes.len() + 10,
        }
    }

    #[test]
    fn frames_are_truncated_and_keep_their_length() {
        let (mut tap, queue) = channel(3);
        tap.record(&tap_record(&[1, 2, 3, 4], 2));
        tap.record(&tap_record(&[1], 2));
        drop(tap);
        let records: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(
            (&records[0].bytes[..], records[0].length),
            (&[1, 2, 3][..], 14)
        );
        assert_eq!((&records[1].bytes[..], records[1].length), (&[1][..], 11));
    }

    #[test]
    fn the_secret_of_an_import_is_not_recorded() {
        let mut frame = Frame::new(&ImportRequest {
            name: 7.into(),
            secret: Secret([0xa5; 16]),
            ..Default::default()
        });
        frame.envelope.destination_port = 9.into();
        let whole = frame.header().to_vec();
        for snaplen in [u32::MAX, 85, 80] {
            let (mut tap, queue) = channel(snaplen);
            tap.record(&tap_record(&whole, 2));
            let recorded = queue.try_next().unwrap().bytes;
            assert_eq!(recorded.len(), whole.len().min(snaplen as usize));
            assert!(!recorded.contains(&0xa5), "{recorded:?}");
            assert_eq!(recorded[..80], whole[..80]);
        }
    }

    #[test]
    fn lost_frames_are_counted_by_link_and_in_the_next_record() {
        let (mut tap, queue) = channel(100);
        for _ in 0..DEPTH + 5 {
            tap.record(&tap_record(&[], 2));
        }
        tap.record(&tap_record(&[], 3));
        let mut records: Vec<_> = std::iter::from_fn(|| queue.try_next().ok()).collect();
        assert_eq!(records.len(), DEPTH);
        for to in [2, 3, 2] {
            tap.record(&tap_record(&[], to));
        }
        drop(tap);
        records.extend(std::iter::from_fn(|| queue.next()));
        let gaps: Vec<_> = records[DEPTH..].iter().map(|record| record.gap).collect();
        assert_eq!(gaps, [5, 1, 0]);
        assert!(records[..DEPTH].iter().all(|record| record.gap == 0));
        let lost = queue.lost();
        assert_eq!(lost[&(NodeId(1), NodeId(2))], 5);
        assert_eq!(queue.lost_in_all(), 6);
    }

    #[test]
    fn large_frames_take_no_more_memory_than_small_ones() {
        let (mut tap, queue) = channel(u32::MAX);
        let frame = vec![7; 32 << 10];
        for _ in 0..DEPTH {
            tap.record(&tap_record(&frame, 2));
        }
        let fit = (BYTES / frame.len()) as u64;
        assert_eq!(queue.lost_in_all(), DEPTH as u64 - fit);
        queue.try_next().unwrap();
        tap.record(&tap_record(&frame, 2));
        assert_eq!(queue.lost_in_all(), DEPTH as u64 - fit, "there was room");
        drop(tap);
        let mut rest = std::iter::from_fn(|| queue.next());
        assert_eq!(rest.by_ref().count() as u64, fit);
        assert_eq!(queue.waiting.load(Ordering::Relaxed), 0);
    }
}
