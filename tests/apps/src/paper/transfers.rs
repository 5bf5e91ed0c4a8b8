//! What transfers cost with the page table and without it (writeP, readP), and what an
//! absent page adds: this process sees the bytes arrive without a third thread, and in host mode
//! takes pages out of either NIC's table.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use qnic::{
    physical, Access, Buffer, CounterSource, Endpoint, Nic, Port, RemoteSegment, Segment,
    SegmentName, Ticket,
};
use qnic_abi::PAGE_SIZE;

use super::{End, Ends, Evict, Nowhere, Samples, HERE};

/// The table.
pub const TRANSFERS: &str = "transfers";

/// Runs of each case in a round, one of each case after the other.
const RUNS: u32 = 100;

/// Transfers of a run, one right after the other. The first is not counted: whether
/// it finds the device process awake depends on what was before.
const IN_A_ROW: u32 = 5;

/// Streams of each case in a round, and transfers of each; a value is the mean of a stream.
const STREAM_RUNS: u32 = 25;
const STREAM: u32 = 256;

/// Longest time for one transfer.
const LIMIT: Duration = Duration::from_secs(10);

const NAME: SegmentName = SegmentName(0x6d);

/// Which page is taken out of its NIC's table before each transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absent {
    Nothing,
    Source,
    Destination,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Write,
    Read,
}

use Absent::{Destination, Nothing, Source};
use Operation::{Read, Write};

/// What is measured by latency: with all pages there, by physical address, too.
const CASES: [(Operation, usize, Absent); 9] = [
    (Write, 4, Nothing),
    (Write, PAGE_SIZE, Nothing),
    (Read, 4, Nothing),
    (Read, PAGE_SIZE, Nothing),
    // Four bytes travel in the command: there is no source page.
    (Write, 4, Destination),
    (Write, PAGE_SIZE, Source),
    (Write, PAGE_SIZE, Destination),
    (Read, PAGE_SIZE, Source),
    (Read, PAGE_SIZE, Destination),
];

/// Pages that were taken out before a transfer that needs them, and page faults that
/// drivers have served meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Pages that were taken out.
    pub absent: u64,
    /// Page faults that were served.
    pub served: u64,
}

/// Pairs of processes, by virtual and by physical address, for one round: where memory, tables and windows
/// happen to lie makes a tenth of short transfers, and stays the same as long as a process lives.
pub struct Bench<'a> {
    ends: &'a Ends,
    pairs: [(&'static str, Pair); 2],
}

impl<'a> Bench<'a> {
    /// Registers at both ends.
    ///
    /// # Errors
    /// Those of the library; [`qnic::Error::Refused`] without the right to use physical addresses.
    pub fn new(ends: &'a Ends) -> Result<Self> {
        let virtual_ = Pair::by_virtual_address(ends, Port(7), PAGE_SIZE)?;
        let physical = Pair::by_physical_address(ends, Port(8), PAGE_SIZE)?;
        let pairs = [("", virtual_), ("P", physical)];
        Ok(Bench { ends, pairs })
    }

    /// Times all cases, then streams. What comes first warms up and is not counted.
    ///
    /// # Errors
    /// Those of the library; also if pages that were taken out were not missed.
    pub fn round(&self, times: &mut dyn Samples) -> Result<Faults> {
        self.latencies(RUNS / 10, &mut Nowhere)?;
        let faults = self.latencies(RUNS, times)?;
        self.streams(times)?;
        Ok(faults)
    }

    /// Times all cases that this process can bring about, one run of each after the other.
    fn latencies(&self, runs: u32, times: &mut dyn Samples) -> Result<Faults> {
        let evicts = self.ends.iter().all(|end| end.evict.is_some());
        let cases = || CASES.into_iter().filter(|case| evicts || case.2 == Nothing);
        let before = self.faults()?;
        for _ in 0..runs {
            for (operation, size, absent) in cases() {
                let name = match operation {
                    Write => "write",
                    Read => "read",
                };
                let (suffix, pairs) = match absent {
                    Nothing => ("", &self.pairs[..]),
                    Source => (", source absent", &self.pairs[..1]),
                    Destination => (", destination absent", &self.pairs[..1]),
                };
                for (physical, pair) in pairs {
                    let name = format!("{name}{physical} {size} B{suffix}");
                    for mark in 1..=IN_A_ROW {
                        let time = pair.transfer(operation, size, absent, mark)?;
                        if mark > 1 {
                            times.one(TRANSFERS, &name, HERE, time);
                        }
                    }
                    pair.flush()?;
                }
            }
        }
        let absent = cases().filter(|case| case.2 != Nothing).count();
        let faults = Faults {
            absent: absent as u64 * u64::from(runs * IN_A_ROW),
            served: self.faults()? - before,
        };
        ensure!(
            faults.served >= faults.absent,
            "some absent pages were not missed: {faults:?}"
        );
        Ok(faults)
    }

    /// Mean times of all streams, one of each after the other.
    fn streams(&self, times: &mut dyn Samples) -> Result<()> {
        for _ in 0..STREAM_RUNS {
            for size in [4, PAGE_SIZE] {
                for (physical, pair) in &self.pairs {
                    for (kind, reads) in [("write", false), ("read", true)] {
                        let name = format!("{kind}{physical} {size} B, stream");
                        times.one(TRANSFERS, &name, HERE, pair.stream(reads, size)?);
                    }
                }
            }
        }
        Ok(())
    }

    /// Page faults that both drivers have served.
    fn faults(&self) -> Result<u64> {
        let mut served = 0;
        for end in self.ends {
            served += end.nic.counters(CounterSource::Driver)?["faults_served"];
        }
        Ok(served)
    }
}

/// A process on a node, with memory exported.
struct Process {
    segment: Segment,
    buffer: Buffer,
    endpoint: Endpoint,
    evict: Option<Arc<Evict>>,
}

impl Process {
    /// Takes its memory out of the table of its NIC, if that is possible.
    fn evict(&self) {
        if let Some(evict) = &self.evict {
            evict(self.buffer.address(), self.buffer.len() as u64);
        }
    }
}

/// A process at each end; the near one works on the memory of both.
pub struct Pair {
    /// Bytes that each exports.
    pub(super) bytes: usize,
    remote: RemoteSegment,
    near: Process,
    far: Process,
}

impl Pair {
    /// Processes that export so many bytes each.
    ///
    /// # Errors
    /// Those of the library.
    pub fn by_virtual_address(ends: &Ends, port: Port, bytes: usize) -> Result<Self> {
        Self::new(ends, port, bytes, (Nic::register, Endpoint::export))
    }

    /// The same by physical addresses.
    pub(super) fn by_physical_address(ends: &Ends, port: Port, bytes: usize) -> Result<Self> {
        let by_physical = (physical::register, physical::export);
        Self::new(ends, port, bytes, by_physical)
    }

    fn new(
        [near, far]: &Ends,
        port: Port,
        bytes: usize,
        (register, export): (
            impl Fn(&Nic, Port) -> qnic::Result<Endpoint>,
            impl Fn(&Endpoint, SegmentName, &Buffer, Access) -> qnic::Result<Segment>,
        ),
    ) -> Result<Self> {
        let process = |end: &End| -> Result<Process> {
            let endpoint = register(&end.nic, port)?;
            let buffer = endpoint.allocate(bytes)?;
            Ok(Process {
                segment: export(&endpoint, NAME, &buffer, Access::READ | Access::WRITE)?,
                buffer,
                endpoint,
                evict: end.evict.clone(),
            })
        };
        let (near, far) = (process(near)?, process(far)?);
        let remote = near
            .endpoint
            .import(far.endpoint.node(), port, NAME, LIMIT)?;
        Ok(Pair {
            bytes,
            remote,
            near,
            far,
        })
    }

    /// Time until the last word of a transfer has arrived, in nanoseconds. It may not
    /// be complete yet: its acknowledgement is not waited for.
    fn transfer(
        &self,
        operation: Operation,
        size: usize,
        absent: Absent,
        mark: u32,
    ) -> Result<f64> {
        let (from, to) = match operation {
            Write => (&self.near, &self.far),
            Read => (&self.far, &self.near),
        };
        to.buffer.store_u32(size - 4, 0)?;
        from.buffer.store_u32(size - 4, mark)?;
        match absent {
            Nothing => (),
            Source => from.evict(),
            Destination => to.evict(),
        }
        let start = Instant::now();
        self.issue(operation, size)?;
        wait_for(&to.buffer, size - 4, mark)?;
        Ok(start.elapsed().as_nanos() as f64)
    }

    fn issue(&self, operation: Operation, size: usize) -> Result<()> {
        let part = self.near.segment.part(0, size);
        match operation {
            Write => self.near.endpoint.write(&self.remote, 0, part).post()?,
            Read => self.near.endpoint.read(&self.remote, 0, part).post()?,
        };
        Ok(())
    }

    /// Time until a write has arrived, in nanoseconds, beside other threads that need a
    /// processor.
    ///
    /// # Errors
    /// Those of the library; also if nothing arrives within `limit`.
    pub fn write_and_wait(&self, size: usize, mark: u32, limit: Duration) -> Result<f64> {
        self.near.buffer.store_u32(size - 4, mark)?;
        let start = Instant::now();
        self.issue(Write, size)?;
        while self.far.buffer.load_u32(size - 4)? != mark {
            ensure!(start.elapsed() < limit, "nothing arrived in {limit:?}");
            std::thread::yield_now();
        }
        Ok(start.elapsed().as_nanos() as f64)
    }

    /// Writes until `stop`, so many at once; counts those that have ended. Returns the rate in
    /// MB/s.
    ///
    /// # Errors
    /// Those of the library.
    pub fn write_until(
        &self,
        size: usize,
        depth: usize,
        stop: &AtomicBool,
        ended: &AtomicU64,
    ) -> Result<f64> {
        let mut under_way = VecDeque::new();
        let (start, mut count) = (Instant::now(), 0u64);
        while !stop.load(Ordering::Relaxed) {
            if under_way.len() == depth {
                under_way.pop_front().map_or(Ok(()), Ticket::wait)?;
                ended.fetch_add(1, Ordering::Relaxed);
            }
            let part = self.near.segment.part(0, size);
            under_way.push_back(self.near.endpoint.write(&self.remote, 0, part).post()?);
            count += 1;
        }
        self.near.endpoint.flush().wait()?;
        Ok((count * size as u64) as f64 / 1e6 / start.elapsed().as_secs_f64())
    }

    /// Nanoseconds until the last word of a page has arrived that is written `offset` bytes behind
    /// the border of a page, from and to two pages unless that is 0; and the same for each write of a
    /// stream of them.
    pub(super) fn write_page_at(&self, offset: usize, mark: u32) -> Result<[f64; 2]> {
        let last = offset + PAGE_SIZE - 4;
        self.far.buffer.store_u32(last, 0)?;
        self.near.buffer.store_u32(last, mark)?;
        let endpoint = &self.near.endpoint;
        let write = || -> Result<()> {
            let part = self.near.segment.part(offset, PAGE_SIZE);
            endpoint.write(&self.remote, offset as u64, part).post()?;
            Ok(())
        };
        let start = Instant::now();
        write()?;
        wait_for(&self.far.buffer, last, mark)?;
        let one = start.elapsed();
        endpoint.flush().wait()?;
        let start = Instant::now();
        (0..STREAM).try_for_each(|_| write())?;
        endpoint.flush().wait()?;
        let stream = start.elapsed().as_nanos() as f64 / f64::from(STREAM);
        Ok([one.as_nanos() as f64, stream])
    }

    /// Nanoseconds until the last word of a write, or of a read, has arrived.
    pub(super) fn seen(&self, reads: bool, size: usize, mark: u32) -> Result<f64> {
        let operation = if reads { Read } else { Write };
        self.transfer(operation, size, Nothing, mark)
    }

    /// Waits until all is complete.
    pub(super) fn flush(&self) -> Result<()> {
        Ok(self.near.endpoint.flush().wait()?)
    }

    /// Mean time between the writes or the reads of a stream, in nanoseconds.
    pub(super) fn stream(&self, reads: bool, size: usize) -> Result<f64> {
        let operation = if reads { Read } else { Write };
        let start = Instant::now();
        for _ in 0..STREAM {
            self.issue(operation, size)?;
        }
        self.near.endpoint.flush().wait()?;
        Ok(start.elapsed().as_nanos() as f64 / f64::from(STREAM))
    }
}

/// Spins until a word has arrived.
fn wait_for(buffer: &Buffer, offset: usize, wanted: u32) -> Result<()> {
    let start = Instant::now();
    let mut polls = 0u32;
    while buffer.load_u32(offset)? != wanted {
        polls = polls.wrapping_add(1);
        ensure!(
            polls % 65_536 != 0 || start.elapsed() < LIMIT,
            "nothing arrived in {LIMIT:?}"
        );
        std::hint::spin_loop();
    }
    Ok(())
}
