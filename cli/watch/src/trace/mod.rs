//! `qnic trace`: the life of single operations across the nodes of a cluster, for Perfetto.
//!
//! ```text
//!   device processes ── control socket: trace ──► events ──┐
//!                                               events ──┴─► operations ──► time line ──► JSON file
//!                                                                │
//!                                                                └────────► summary
//! ```
//! | module | holds |
//! |---|---|
//! | `collect` | events from several device processes, until the caller has enough |
//! | `operations` | what all nodes say of one operation, put together |
//! | `calls` | the same of what is no command: collectives, joins, imports, names |
//! | `names` | what operations, frames and nodes are called |
//! | `timeline` | processes, tracks, slices, arrows and counters: the trace event format |
//! | `summary` | counts, and the slowest operations |
//!
//! # Invariants
//! - An operation is what has the same scope, requester and name there; all nodes say both.
//! - All events have times of one clock: the monotonic clock of the host, which all its device
//!   processes share. Nodes of other hosts are not part of a trace.
//! - What is kept is bounded ([`Settings::limit`]); what does not fit is counted, as what the NICs have
//!   lost is.
//! - However it ends, the device processes stop tracing: they do when a connection ends.

mod calls;
mod collect;
mod names;
mod operations;
mod summary;
mod timeline;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use qnic_cluster::{Cancel, Cluster};

pub use collect::{Collected, Collection, TracedNode};
pub use operations::{Call, Operation, Operations, SeenFrame, SentFrame};
pub use summary::{Slow, Summary};
pub use timeline::write;

/// Where events come from.
pub enum Source {
    /// The device processes of a cluster's network: `[network]`, or that of this name.
    Cluster(Box<Cluster>, Option<String>),
    /// Device processes, by their control sockets.
    Sockets(Vec<PathBuf>),
}

impl Source {
    fn sockets(&self) -> Vec<PathBuf> {
        match self {
            Source::Cluster(cluster, network) => cluster.control_sockets(network.as_deref()),
            Source::Sockets(sockets) => sockets.clone(),
        }
    }
}

/// What is traced, and where it goes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// For how long.
    pub time: Duration,
    /// Names of nodes; all if there is none.
    pub nodes: Vec<String>,
    /// Every so many operations of a node, one.
    pub sample: u32,
    /// Most events that are kept.
    pub limit: usize,
    /// The file.
    pub output: PathBuf,
    /// The summary as JSON.
    pub json: bool,
}

/// Traces until the time is over, the limit is reached, or `cancel` is pulled; then writes the file
/// and says what is in it.
///
/// # Errors
/// A device process does not answer, or traces already; the file cannot be written.
pub fn run(source: &Source, settings: &Settings, cancel: &Cancel) -> Result<()> {
    // Before the wait, so that a wrong name costs no trace; what was there stays until there is one.
    let unwritten = || format!("write {}", settings.output.display());
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&settings.output)
        .with_context(unwritten)?;
    let collection = Collection::begin(&source.sockets(), settings)?;
    if !settings.json {
        let names: Vec<_> = collection.nodes().iter().map(|node| &*node.name).collect();
        eprintln!(
            "tracing {} for {:?}; Ctrl-C ends it",
            names.join(", "),
            settings.time
        );
    }
    collection.wait(settings.time, cancel)?;
    let collected = collection.end()?;
    let operations = Operations::of(&collected);
    if file.metadata().with_context(unwritten)?.is_file() {
        file.set_len(0).with_context(unwritten)?;
    }
    let mut file = BufWriter::new(file);
    let arrows = write(&mut file, &collected, &operations)
        .and_then(|arrows| file.flush().map(|()| arrows))
        .with_context(unwritten)?;
    let summary = Summary::of(&collected, &operations, arrows);
    match settings.json {
        true => println!("{}", serde_json::to_string(&summary)?),
        false => print!("{}", summary.text(&settings.output)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    use qnic_nic::trace::Record;

    use super::*;
    use crate::trace::operations::tests::write as a_write;

    /// A device process that answers one request, and sends these events until it is told to end.
    fn device(path: &std::path::Path, answer: &str, records: Vec<u8>) -> JoinHandle<()> {
        let listener = UnixListener::bind(path).unwrap();
        let answer = format!("{answer}\n");
        std::thread::spawn(move || {
            let mut client = listener.accept().unwrap().0;
            client.write_all(answer.as_bytes()).unwrap();
            client.write_all(&records).unwrap();
            // Until the other side ends its output.
            client.read_to_end(&mut Vec::new()).unwrap();
        })
    }

    fn settings(directory: &std::path::Path) -> Settings {
        Settings {
            time: Duration::from_millis(1),
            nodes: Vec::new(),
            sample: 1,
            limit: 100,
            output: directory.join("trace.json"),
            json: true,
        }
    }

    #[test]
    fn a_trace_of_two_device_processes_becomes_a_file_when_the_time_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let settings = settings(directory);
        std::fs::write(&settings.output, vec![b'x'; 100_000]).unwrap();
        let nodes = [(0, "a"), (1, "b")];
        let processes = nodes.map(|(node, name)| {
            let events = a_write().into_iter().filter(|event| event.at == node);
            let records = events.map(|event| Record::from(event).to_bytes());
            let answer = format!("{{\"tracing\":[{{\"node\":{node},\"name\":\"{name}\"}}]}}");
            let socket = directory.join(name);
            let records = records.collect::<Vec<_>>().concat();
            (device(&socket, &answer, records), socket)
        });
        let (threads, sockets): (Vec<_>, Vec<_>) = processes.into_iter().unzip();
        run(
            &Source::Sockets(sockets),
            &settings,
            &Cancel::new().unwrap(),
        )
        .unwrap();
        threads.into_iter().for_each(|it| it.join().unwrap());
        let text = std::fs::read_to_string(&settings.output).unwrap();
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
        assert_eq!((named("write 8 B to b"), named("Write 8 B")), (1, 1));
        assert_eq!(named("frames"), 2, "an arrow");
    }

    #[test]
    fn a_file_stays_what_it_was_if_there_is_no_trace() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let settings = settings(directory);
        std::fs::write(&settings.output, "old").unwrap();
        let socket = directory.join("a");
        let process = device(&socket, "{\"error\":\"no\"}", Vec::new());
        let source = Source::Sockets(vec![socket]);
        let error = run(&source, &settings, &Cancel::new().unwrap()).unwrap_err();
        assert!(format!("{error:#}").ends_with(": no"), "{error:#}");
        process.join().unwrap();
        assert_eq!(std::fs::read_to_string(&settings.output).unwrap(), "old");
    }
}
