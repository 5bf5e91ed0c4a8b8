//! The trace: one line for each event, the same bytes for the same seed.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::schedule::lock;

/// Memory that keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Where trace lines go.
pub(crate) struct Trace(Option<Box<dyn Write + Send>>);

impl Trace {
    /// Nowhere.
    pub(crate) fn off() -> Self {
        Trace(None)
    }

    /// To a writer. What cannot be written is left out: a closed pipe ends no
    /// simulation.
    pub(crate) fn to(writer: impl Write + Send + 'static) -> Self {
        Trace(Some(Box::new(writer)))
    }

    /// To memory, which is returned, too.
    pub(crate) fn kept() -> (Self, Arc<Mutex<Vec<u8>>>) {
        let kept = Kept::default();
        (Trace::to(kept.clone()), kept.0)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn line(&mut self, now: u64, line: fmt::Arguments<'_>) {
        if let Some(writer) = &mut self.0 {
            let (seconds, rest) = (now / 1_000_000_000, now % 1_000_000_000);
            let _closed = writeln!(writer, "[{seconds}.{rest:09}] {line}");
        }
    }

    /// Writes out what a writer keeps.
    pub(crate) fn flush(&mut self) {
        if let Some(writer) = &mut self.0 {
            let _closed = writer.flush();
        }
    }
}
