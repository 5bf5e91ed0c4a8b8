//! Copies files and directories into and out of guests.
//!
//! A copy is a command like any other: the helper packs or unpacks an
//! archive, whose checksum the receiving side verifies before anything appears at
//! the destination.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use qnic_exec::archive;
use qnic_exec::wire::CHUNK;

use crate::dirs::NodeDir;
use crate::guest_command::{GuestCommand, GuestEvent};
use crate::guest_process::{GuestInput, GuestProcess, HELPER};
use crate::{Cancel, Error, Result};

/// Called with the number of bytes that have gone so far.
pub type Count<'a> = &'a (dyn Fn(u64) + Sync);

/// Copies `from` of the host to `to` in the guest of `dir`.
pub(crate) fn put(
    dir: &NodeDir,
    from: &Path,
    to: &Path,
    count: Count<'_>,
    cancel: Option<&Cancel>,
) -> Result<()> {
    let command = GuestCommand::new(HELPER).arg("unpack").arg(to).with_input();
    let mut process = GuestProcess::start(dir, &command, None, cancel)?;
    let input = process.input();
    let broken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let packing = scope.spawn(|| {
            let upload = Upload {
                input: &input,
                count,
                sent: 0,
                broken: &broken,
            };
            let packed = archive::pack(from, io::BufWriter::with_capacity(CHUNK, upload));
            // The other side finds the end missing if packing failed.
            let closed = input.close();
            packed.map_err(Error::io("copy", from)).and(closed)
        });
        let unpacked = finish(&mut process, dir.name(), &mut |_| Ok(()));
        if unpacked.is_err() {
            process.abandon();
        }
        let packed = packing.join().unwrap_or(Err(Error::Interrupted));
        // A source that cannot be read explains the complaint of the other side. A connection that
        // broke is explained by the other side.
        if broken.load(Ordering::Relaxed) {
            unpacked.and(packed)
        } else {
            packed.and(unpacked)
        }
    })
}

/// Copies `from` of the guest of `dir` to `to` on the host. Returns the path of what was made.
pub(crate) fn get(
    dir: &NodeDir,
    from: &Path,
    to: &Path,
    count: Count<'_>,
    cancel: Option<&Cancel>,
) -> Result<PathBuf> {
    let command = GuestCommand::new(HELPER).arg("pack").arg(from);
    let mut process = GuestProcess::start(dir, &command, None, cancel)?;
    let (reader, mut writer) = UnixStream::pair().map_err(Error::io("copy", from))?;
    std::thread::scope(|scope| {
        let unpacking = scope.spawn(move || archive::unpack(reader, to));
        let mut received = 0;
        let packed = finish(&mut process, dir.name(), &mut |bytes| {
            received += bytes.len() as u64;
            count(received);
            writer.write_all(bytes)
        });
        drop(writer);
        let unpacked = unpacking.join().unwrap_or(Err(io::ErrorKind::Other.into()));
        match (packed, unpacked) {
            // What stopped the receiver is the cause of a broken pipe.
            (Err(Error::Io { .. }), Err(error)) | (Ok(()), Err(error)) => {
                Err(Error::io("copy", to)(error))
            }
            (Err(error), _) => Err(error),
            (Ok(()), Ok(made)) => Ok(made),
        }
    })
}

/// The input of a command, counted.
struct Upload<'a> {
    input: &'a GuestInput,
    count: Count<'a>,
    sent: u64,
    /// Set when the connection failed. Read after this thread was joined, which
    /// orders it.
    broken: &'a AtomicBool,
}

impl Write for Upload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.input.write(bytes) {
            self.broken.store(true, Ordering::Relaxed);
            return Err(io::Error::other(error));
        }
        self.sent += bytes.len() as u64;
        (self.count)(self.sent);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of the helper's error output that are kept.
const COMPLAINT_BYTES: usize = 4096;

/// Follows the helper to its end, giving its output to `output`.
fn finish(
    process: &mut GuestProcess,
    node: &str,
    output: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<()> {
    let mut complaint = Vec::new();
    loop {
        match process.next_event(None)? {
            Some(GuestEvent::Stdout(bytes)) => {
                output(&bytes).map_err(Error::io("write", Path::new("the copy")))?
            }
            Some(GuestEvent::Stderr(bytes)) => {
                let room = COMPLAINT_BYTES.saturating_sub(complaint.len());
                complaint.extend(bytes.into_iter().take(room));
            }
            Some(GuestEvent::Exit(exit)) if exit.success() => return Ok(()),
            Some(GuestEvent::Exit(exit)) => {
                let said = crate::follow::readable(&complaint);
                let said = said.trim().trim_start_matches("qnic-exec: ");
                let message = format!("cannot copy: {said} (exit code {})", exit.code());
                return Err(Error::guest(node, message));
            }
            None => {}
        }
    }
}
