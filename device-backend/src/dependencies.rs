//! What dependencies log (crate `log`), among the lines of this process: `vhost`, `virtio-queue` and others
//! say there what is wrong with a front end or a queue.
//!
//! A guest can cause some of these lines without limit, so only so many pass.

use log::{Level, LevelFilter, Log, Metadata, Record, SetLoggerError};

use crate::throttle::Throttle;

/// The least important lines that are shown.
const SHOWN: Level = Level::Warn;

/// The logger of dependencies.
#[derive(Debug, Default)]
struct Dependencies {
    throttle: Throttle,
}

impl Log for Dependencies {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= SHOWN
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) || !self.throttle.allows() {
            return;
        }
        let (of, message) = (record.target(), record.args());
        match record.level() {
            Level::Error => tracing::error!(of, "{message}"),
            _ => tracing::warn!(of, "{message}"),
        }
    }

    fn flush(&self) {}
}

/// Shows warnings and errors of dependencies from now on, by the subscriber of `tracing`.
///
/// # Errors
/// Returns an error if the process has a logger already.
pub fn show_dependencies() -> Result<(), SetLoggerError> {
    log::set_boxed_logger(Box::<Dependencies>::default())?;
    log::set_max_level(LevelFilter::Warn);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn dependencies_are_shown_by_their_names_and_do_not_fill_the_log() {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let dependencies = Dependencies::default();
        let say = |level, text: &str| {
            let record = Record::builder()
                .level(level)
                .target("virtio_queue")
                .build();
            dependencies.log(
                &Record::builder()
                    .metadata(record.metadata().clone())
                    .args(format_args!("{text}"))
                    .build(),
            );
        };
        tracing::subscriber::with_default(subscriber, || {
            say(Level::Info, "all is well");
            for _ in 0..1000 {
                say(Level::Error, "a broken ring");
            }
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().filter(|line| {
            ["ERROR", "a broken ring", "of=\"virtio_queue\""]
                .iter()
                .all(|part| line.contains(part))
        });
        let count = lines.count();
        assert!((1..100).contains(&count), "{count}: {text}");
        assert!(!text.contains("well"), "{text}");
    }
}
