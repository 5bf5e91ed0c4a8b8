//! Captures: the frames on links as a stream of pcapng blocks (X5).
//!
//! ```text
//!   engine thread                 thread of the capture        client
//!   Tap::record ──[bounded queue]──► CaptureFile ──socket──►   a file, Wireshark
//!        └─ full: counted                                        │
//!   untap ◄──────── thread that reads ◄── end of input ──────────┘
//! ```
//!
//! The engine never waits: what does not fit into the queue of a slow client is lost
//! to the capture, counted per link, and recorded in the capture (`epb_dropcount` of the
//! next frame, `isb_ifdrop` at the end). A client that shuts down its side gets what
//! is queued, the statistics, and the end of the stream.

mod file;
mod queue;

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::TryRecvError;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use pcap_file::PcapError;
use qnic_abi::NodeId;
use qnic_links::LinkSet;
use serde::Deserialize;

use crate::engine::{Engines, Tapped};
use file::CaptureFile;
use queue::Queue;

/// Most captures at a time.
const MAX_CAPTURES: usize = 8;

/// Longest time that a client may read nothing.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The line before the stream.
const ACCEPTED: &[u8] = b"{\"capturing\":true}\n";

/// Bytes that are written to the client at once.
const BUFFER: usize = 1 << 16;

/// Names of the nodes of this process.
pub(crate) type Names = BTreeMap<NodeId, String>;

/// What is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CaptureSettings {
    links: LinkSet,
    /// Bytes of each frame that are kept.
    #[serde(default = "whole_frames")]
    snaplen: u32,
    /// Ends by itself after so many frames; zero: it does not.
    #[serde(default)]
    count: u64,
}

/// Room for any frame.
fn whole_frames() -> u32 {
    1 << 16
}

/// The captures that run.
#[derive(Debug)]
pub(crate) struct Captures {
    names: Arc<Names>,
    running: Vec<Capture>,
}

#[derive(Debug)]
struct Capture {
    client: UnixStream,
    thread: JoinHandle<()>,
}

impl Captures {
    pub(crate) fn new(names: Names) -> Self {
        Captures {
            names: Arc::new(names),
            running: Vec::new(),
        }
    }

    pub(crate) fn begin(
        &mut self,
        client: &UnixStream,
        engines: &Engines,
        settings: CaptureSettings,
    ) -> crate::Fallible<()> {
        self.running.retain(|capture| !capture.thread.is_finished());
        if self.running.len() >= MAX_CAPTURES {
            Err(format!("{MAX_CAPTURES} captures run already"))?;
        }
        let client = client.try_clone()?;
        client.set_read_timeout(None)?;
        client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let stream = client.try_clone()?;
        let (tap, queue) = queue::channel(settings.snaplen);
        let links = settings.links;
        let (tapped, now) = engines.tap(links, tap)??;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let session = Session {
            stream,
            queue,
            names: self.names.clone(),
            epoch: since
                .unwrap_or_default()
                .saturating_sub(Duration::from_nanos(now.0)),
            settings,
            taps: Taps {
                engines: engines.clone(),
                tapped,
            },
        };
        let thread = std::thread::Builder::new().name("capture".to_owned());
        let thread = thread.spawn(move || session.run())?;
        self.running.push(Capture { client, thread });
        Ok(())
    }
}

impl Drop for Captures {
    /// Ends them all: each client gets what is queued.
    fn drop(&mut self) {
        for capture in &self.running {
            // As if the client had said that it has enough.
            let _ = capture.client.shutdown(Shutdown::Read);
        }
        for capture in self.running.drain(..) {
            if capture.thread.join().is_err() {
                tracing::error!("a capture's thread failed");
            }
        }
    }
}

/// What the threads of one capture work with.
struct Session {
    stream: UnixStream,
    queue: Queue,
    names: Arc<Names>,
    /// Wall-clock time of the engine's time 0.
    epoch: Duration,
    settings: CaptureSettings,
    taps: Taps,
}

/// The taps, and with them the queue; they end when this is dropped.
struct Taps {
    engines: Engines,
    tapped: Tapped,
}

impl Taps {
    fn end(&self) {
        self.engines.untap(&self.tapped);
    }
}

impl Drop for Taps {
    fn drop(&mut self) {
        self.end();
    }
}

impl Session {
    fn run(&self) {
        let (stream, taps) = (&self.stream, &self.taps);
        std::thread::scope(|scope| {
            let end = || {
                wait_for_end(stream);
                taps.end();
            };
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, end) {
                tracing::error!("capture not started: cannot start a thread: {error}");
                return taps.end();
            }
            let lost = || self.queue.lost_in_all();
            match self.write() {
                Ok(frames) => tracing::info!(frames, lost = lost(), "capture ended"),
                Err(error) => tracing::warn!("capture ended: {error}"),
            }
            // Wakes the other thread, unless that has ended the capture.
            let _ = stream.shutdown(Shutdown::Both);
        });
    }

    /// Writes frames until the queue ends or there are enough. Returns their number.
    fn write(&self) -> Result<u64, PcapError> {
        let CaptureSettings { snaplen, count, .. } = self.settings;
        let mut buffer = BufWriter::with_capacity(BUFFER, &self.stream);
        buffer.write_all(ACCEPTED).map_err(PcapError::IoError)?;
        let mut file = CaptureFile::new(buffer, &self.names, self.epoch, snaplen)?;
        file.get_mut().flush().map_err(PcapError::IoError)?;
        let mut frames = 0;
        while count == 0 || frames < count {
            let record = match self.queue.try_next() {
                Ok(record) => Some(record),
                Err(TryRecvError::Disconnected) => None,
                Err(TryRecvError::Empty) => {
                    // The client gets all there is before this thread waits.
                    file.get_mut().flush().map_err(PcapError::IoError)?;
                    self.queue.next()
                }
            };
            let Some(record) = record else { break };
            file.frame(&record)?;
            frames += 1;
        }
        let mut buffer = file.finish(&self.queue.lost())?;
        buffer.flush().map_err(PcapError::IoError)?;
        Ok(frames)
    }
}

/// Reads until the client, or the end of the device, closes that direction.
fn wait_for_end(mut stream: &UnixStream) {
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}
