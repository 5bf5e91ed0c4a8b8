//! Captures: what runs over links, as a stream of pcapng blocks (X5).
//!
//! ```text
//!   engine thread              thread of the capture        client
//!   Tap::see ──[bounded queue]──► CaptureFile ──socket──►   a file, Wireshark
//!        └─ full: counted                                     │
//!   Untap ◄──────── thread that reads ◄── end of input ───────┘
//! ```
//!
//! The engine never waits: what does not fit into the queue of a slow client is lost
//! to the capture, counted per link, and told in the capture (`epb_dropcount` of the
//! next frame, `isb_ifdrop` at the end). A client that shuts down its side gets what
//! is queued, the statistics, and the end of the stream.

mod file;
mod queue;

use std::collections::BTreeMap;
use std::io::{BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::TryRecvError;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use pcap_file::PcapError;
use qnic_abi::NodeId;
use qnic_links::{LinkSet, TapId};

use crate::engine::{Command, EngineHandle};
use file::CaptureFile;
use queue::Queue;

/// Most captures at a time.
const MAX_CAPTURES: usize = 8;

/// How long a client may take nothing at all.
const PATIENCE: Duration = Duration::from_secs(5);

/// The line before the stream.
const ACCEPTED: &[u8] = b"{\"capturing\":true}\n";

/// Bytes that go to the client in one piece.
const PIECE: usize = 1 << 16;

/// Names of the nodes of this process.
pub(crate) type Names = BTreeMap<NodeId, String>;

/// What is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CaptureSettings {
    /// The links.
    pub(crate) links: LinkSet,
    /// Bytes of each frame that are kept.
    pub(crate) snaplen: u32,
    /// Ends by itself after so many frames; zero: it does not.
    pub(crate) count: u64,
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

    /// Begins one; `Err` says why that cannot be.
    pub(crate) fn begin(
        &mut self,
        client: &UnixStream,
        engine: &EngineHandle,
        settings: &CaptureSettings,
    ) -> Result<(), String> {
        self.running.retain(|capture| !capture.thread.is_finished());
        if self.running.len() >= MAX_CAPTURES {
            return Err(format!("{MAX_CAPTURES} captures run already"));
        }
        let text = |error: std::io::Error| error.to_string();
        let client = client.try_clone().map_err(text)?;
        client.set_read_timeout(None).map_err(text)?;
        client.set_write_timeout(Some(PATIENCE)).map_err(text)?;
        let stream = client.try_clone().map_err(text)?;
        let (tap, queue) = queue::channel(settings.snaplen);
        let answer = engine.ask(|answer| Command::Tap {
            links: settings.links,
            tap: Box::new(tap),
            answer,
        });
        let answer = answer.map_err(|error| error.to_string())?;
        let (tap, now) = answer.map_err(|error| error.to_string())?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let epoch = since
            .unwrap_or_default()
            .saturating_sub(Duration::from_nanos(now.0));
        let (names, settings, of_thread) = (self.names.clone(), *settings, engine.clone());
        let work = move || {
            run(&stream, &queue, &names, epoch, &settings, &of_thread, tap);
        };
        let thread = std::thread::Builder::new().name("capture".to_owned());
        let thread = thread.spawn(work).map_err(|error| {
            let _ = engine.send(Command::Untap { tap });
            error.to_string()
        })?;
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

/// Runs one capture to its end.
fn run(
    stream: &UnixStream,
    queue: &Queue,
    names: &Names,
    epoch: Duration,
    settings: &CaptureSettings,
    engine: &EngineHandle,
    tap: TapId,
) {
    std::thread::scope(|scope| {
        let end = || {
            wait_for_end(stream);
            // Without the tap the queue ends. An engine that is gone has none.
            let _ = engine.send(Command::Untap { tap });
        };
        if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, end) {
            tracing::error!("capture not started: no thread can be had: {error}");
            let _ = engine.send(Command::Untap { tap });
            return;
        }
        match write(stream, queue, names, epoch, settings) {
            Ok(frames) => tracing::info!(frames, lost = queue.lost_in_all(), "capture ended"),
            Err(error) => tracing::warn!("capture ended: {error}"),
        }
        // Wakes the other thread, if it is not its doing.
        let _ = stream.shutdown(Shutdown::Both);
    });
}

/// Reads until the client, or the end of the device, closes that direction.
fn wait_for_end(mut stream: &UnixStream) {
    let mut ignored = [0; 64];
    loop {
        match stream.read(&mut ignored) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Writes frames until the queue ends or there are enough; says how many.
fn write(
    stream: &UnixStream,
    queue: &Queue,
    names: &Names,
    epoch: Duration,
    settings: &CaptureSettings,
) -> Result<u64, PcapError> {
    let mut piece = BufWriter::with_capacity(PIECE, stream);
    piece.write_all(ACCEPTED).map_err(PcapError::IoError)?;
    let mut file = CaptureFile::new(piece, names, epoch, settings.snaplen)?;
    file.get_mut().flush().map_err(PcapError::IoError)?;
    let mut frames = 0;
    while settings.count == 0 || frames < settings.count {
        let record = match queue.try_next() {
            Ok(record) => Some(record),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                // The client sees all there is before this thread waits.
                file.get_mut().flush().map_err(PcapError::IoError)?;
                queue.next()
            }
        };
        let Some(record) = record else { break };
        file.frame(&record)?;
        frames += 1;
    }
    let mut piece = file.finish(&queue.lost())?;
    piece.flush().map_err(PcapError::IoError)?;
    Ok(frames)
}
