//! Traces: what happens to single operations of NICs, as a stream of events (X6).
//!
//! ```text
//!   engine thread                                  thread of the trace          client
//!   NIC ──► buffer ◄─── swapped, every LOOK ─────► buffer ── records ──socket──► qnic trace
//!     └─ full: counted                                ▲                            │
//!   end_trace ◄── Running is dropped ─────────────────┴── end of input, failure ◄──┘
//! ```
//!
//! # Invariants
//! - The engine never waits, and copies nothing: it swaps a full buffer for an empty one. What does not
//!   fit is lost to the trace, counted, and told in a record of its own ([`qnic_nic::trace::What::Lost`]).
//! - Memory: two buffers ([`empty_buffer`]) for each NIC, 3 MiB, as long as the trace runs. They belong
//!   to this process; nothing that guests, peers or the client do makes them larger.
//! - However the client ends (it shuts its side down, closes, is killed, does not read for
//!   [`CLIENT_TIMEOUT`]), the NICs stop tracing: [`Running`] ends that when it is dropped.
//! - A NIC has one trace at a time.
//!
//! # The stream
//! A line `{"tracing":[{"node":0,"name":"a"},…],"sample":1}`, and then records
//! ([`qnic_nic::trace::Record`]) until the end. Times are those of the system's monotonic clock: all
//! processes of a host have the same. Records of a NIC come in the order in which it has noted them.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use qnic_nic::trace::{Event, Record, Taken};
use serde::Deserialize;
use zerocopy::IntoBytes;

use crate::engine::{empty_buffer, EngineGone, Engines, Traced};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Longest time that a client may read nothing.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// What is traced.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceSettings {
    /// Names of nodes; all without it. Those that are not of this process are left out.
    nodes: Option<Vec<String>>,
    /// Every so many operations, one.
    #[serde(default = "every_one")]
    sample: u32,
}

fn every_one() -> u32 {
    1
}

/// The traces that run.
#[derive(Debug, Default)]
pub(crate) struct Traces(Vec<Trace>);

#[derive(Debug)]
struct Trace {
    client: UnixStream,
    thread: JoinHandle<()>,
}

impl Traces {
    pub(crate) fn begin(
        &mut self,
        client: &UnixStream,
        engines: &Engines,
        settings: TraceSettings,
    ) -> crate::Fallible<()> {
        self.0.retain(|trace| !trace.thread.is_finished());
        let client = client.try_clone()?;
        client.set_read_timeout(Some(LOOK))?;
        client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let mut stream = client.try_clone()?;
        let sample = settings.sample.max(1);
        let traced = engines.begin_traces(settings.nodes, sample)??;
        let running = Running {
            engines: engines.clone(),
            spare: traced.iter().map(|_| empty_buffer()).collect(),
            traced,
        };
        let accepted = serde_json::json!({ "tracing": running.traced, "sample": sample });
        stream.write_all(format!("{accepted}\n").as_bytes())?;
        let thread = std::thread::Builder::new().name("trace".to_owned());
        let thread = thread.spawn(move || running.run(&stream))?;
        self.0.push(Trace { client, thread });
        Ok(())
    }
}

impl Drop for Traces {
    /// Ends them all: each client gets what is there.
    fn drop(&mut self) {
        for trace in &self.0 {
            // As if the client had said that it has enough.
            let _ = trace.client.shutdown(Shutdown::Read);
        }
        for trace in self.0.drain(..) {
            if trace.thread.join().is_err() {
                tracing::error!("a trace's thread failed");
            }
        }
    }
}

/// A trace of NICs; they stop when it is dropped.
struct Running {
    engines: Engines,
    traced: Vec<Traced>,
    /// An empty buffer for each.
    spare: Vec<Vec<Record>>,
}

impl Running {
    fn run(mut self, stream: &UnixStream) {
        let written = self.write(stream);
        match written {
            Ok((events, lost)) => tracing::info!(events, lost, "trace ended"),
            Err(error) => tracing::warn!("trace ended: {error}"),
        }
        drop(self);
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// Writes what comes until the client has enough. Returns how many events were written and lost.
    fn write(&mut self, stream: &UnixStream) -> crate::Fallible<(u64, u64)> {
        let (mut events, mut lost) = (0, 0);
        while !self.traced.is_empty() {
            let ends = wait_for_end(stream);
            for taken in self.take()? {
                events += taken.0.events.len() as u64;
                lost += taken.0.lost;
                write_taken(stream, &taken.0, taken.1)?;
                self.spare.push(taken.0.events);
            }
            if ends {
                break;
            }
        }
        Ok((events, lost))
    }

    /// What the NICs have noted, with their nodes.
    fn take(&mut self) -> Result<Vec<(Taken, u16)>, EngineGone> {
        let taken = self.engines.take_traces(&self.traced, &mut self.spare)?;
        let nodes = self.traced.iter().map(|traced| traced.node);
        Ok(taken.into_iter().zip(nodes).collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.engines.end_traces(&self.traced);
    }
}

fn write_taken(mut stream: &UnixStream, taken: &Taken, node: u16) -> std::io::Result<()> {
    stream.write_all(taken.events.as_bytes())?;
    if taken.lost == 0 {
        return Ok(());
    }
    // The buffer was full, so it has a last one.
    let last = taken.events.last();
    let last = last.and_then(|record| Event::try_from(*record).ok());
    let time = last.map_or(0, |event| event.time);
    let lost = Event::lost(time, node, taken.lost);
    stream.write_all(Record::from(lost).as_bytes())
}

/// Waits for the time between two looks. Returns true if the client has said that it has enough, or is gone.
fn wait_for_end(mut stream: &UnixStream) -> bool {
    match stream.read(&mut [0; 1]) {
        // Whatever it says is taken for an end, too.
        Ok(0 | 1..) => true,
        Err(error) => {
            let goes_on = [
                ErrorKind::WouldBlock,
                ErrorKind::TimedOut,
                ErrorKind::Interrupted,
            ];
            !goes_on.contains(&error.kind())
        }
    }
}
