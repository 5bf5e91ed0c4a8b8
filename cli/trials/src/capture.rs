//! Captures of a whole trial: one file for each device process.

use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::{channel, Sender};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use qnic_cluster::{Cancel, CaptureOptions, Cluster, Links};

use crate::artifacts::Artifacts;

/// Longest time for a capture to begin.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);

/// A capture under way.
pub(crate) type Capture<'scope> = ScopedJoinHandle<'scope, qnic_cluster::Result<u64>>;

/// Starts captures of all links, which run until `over` is pulled; when it returns, they see
/// every frame.
pub(crate) fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    cluster: &'env Cluster,
    kept: &Artifacts,
    over: &'env Cancel,
) -> Result<Vec<Capture<'scope>>, String> {
    let mut captures = Vec::new();
    for (name, links) in parts(cluster) {
        let file = kept.file(&name);
        let file = file.map_err(|error| format!("cannot keep the capture {name}: {error}"))?;
        let (begun, begins) = channel();
        let mut out = Announced {
            file,
            begun: Some(begun),
        };
        captures.push(scope.spawn(move || {
            let options = CaptureOptions::default();
            cluster.capture(&links, &options, over, &mut out)
        }));
        // A capture that fails ends at once, and its sender with it.
        if begins.recv_timeout(BEGIN_LIMIT).is_err() {
            over.cancel();
            finish(captures)?;
            return Err(format!("the capture {name} does not begin"));
        }
    }
    Ok(captures)
}

/// Waits for captures that were ended.
pub(crate) fn finish(captures: Vec<Capture<'_>>) -> Result<(), String> {
    for capture in captures {
        let ended = capture.join();
        let ended = ended.map_err(|_| "the thread of a capture panicked".to_owned())?;
        ended.map_err(|error| format!("a capture: {error}"))?;
    }
    Ok(())
}

/// The files, and which links each shows: of several device processes, each captures those of
/// its nodes.
fn parts(cluster: &Cluster) -> Vec<(String, Links)> {
    match cluster.devices().len() {
        0 => Vec::new(),
        1 => vec![("capture.pcapng".to_owned(), Links::All)],
        _ => {
            let nics = cluster.spec().nic_addresses().into_iter();
            let part = |nic: String| (format!("capture-{nic}.pcapng"), Links::At(nic));
            nics.map(part).collect()
        }
    }
}

/// A file that tells of the first bytes written to it.
struct Announced {
    file: File,
    begun: Option<Sender<()>>,
}

impl Write for Announced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        if let Some(begun) = self.begun.take() {
            // If no thread waits any more, the trial is over.
            let _ = begun.send(());
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
