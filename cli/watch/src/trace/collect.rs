//! Events from device processes: one thread reads each of them, until the caller, the limit or a
//! device process ends it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure, Context, Result};
use qnic_cluster::Cancel;
use qnic_nic::trace::{Event, What, RECORD_BYTES};
use serde::Deserialize;
use serde_json::{json, Value};

use crate::trace::Settings;

/// Longest time that a device process may say nothing: it looks at its NICs every 20 ms.
const SILENCE: Duration = Duration::from_secs(20);

/// A node that is traced.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TracedNode {
    /// Its number.
    pub node: u16,
    /// Its name.
    pub name: String,
}

/// What was collected.
#[derive(Debug, Clone, Default)]
pub struct Collected {
    /// The nodes that were traced.
    pub nodes: Vec<TracedNode>,
    /// Their events, by time; those of one node at one time as it has noted them.
    pub events: Vec<Event>,
    /// Events that NICs had no room for, by their nodes.
    pub lost: BTreeMap<u16, u64>,
    /// Events that were beyond the limit.
    pub beyond: u64,
}

/// A trace that runs.
pub struct Collection {
    nodes: Vec<TracedNode>,
    streams: Vec<UnixStream>,
    readers: Vec<JoinHandle<Result<Part>>>,
    /// Pulled when there is nothing to wait for any more.
    over: Cancel,
}

/// What one device process has said.
#[derive(Default)]
struct Part {
    events: Vec<Event>,
    lost: BTreeMap<u16, u64>,
    beyond: u64,
}

/// How much is kept by all readers together.
struct Room {
    kept: AtomicUsize,
    limit: usize,
    over: Cancel,
}

impl Room {
    /// Returns true if there is room for one more.
    fn take(&self) -> bool {
        // Relaxed: it bounds memory, and orders nothing.
        let kept = self.kept.fetch_add(1, Ordering::Relaxed);
        if kept + 1 >= self.limit {
            self.over.cancel();
        }
        kept < self.limit
    }
}

impl Collection {
    /// Asks the device processes to trace.
    ///
    /// # Errors
    /// One does not answer, or traces a node already; a name is that of no node. Then none traces.
    pub fn begin(sockets: &[PathBuf], settings: &Settings) -> Result<Self> {
        ensure!(!sockets.is_empty(), "no node has a NIC");
        let mut request = json!({ "cmd": "trace", "sample": settings.sample });
        if !settings.nodes.is_empty() {
            request["nodes"] = settings.nodes.clone().into();
        }
        let (mut nodes, mut begun) = (Vec::new(), Vec::new());
        // Those that have begun end when `begun` is dropped.
        for socket in sockets {
            let asked = ask(socket, &request);
            let (more, stream) =
                asked.with_context(|| format!("the device process at {}", socket.display()))?;
            if !more.is_empty() {
                nodes.extend(more);
                begun.push(stream);
            }
        }
        for name in &settings.nodes {
            let known = nodes.iter().any(|node: &TracedNode| node.name == *name);
            ensure!(known, "no node {name:?} has a NIC here");
        }
        let over = Cancel::new()?;
        let room = Arc::new(Room {
            kept: AtomicUsize::new(0),
            limit: settings.limit,
            over: over.clone(),
        });
        let mut collection = Collection {
            nodes,
            streams: Vec::new(),
            readers: Vec::new(),
            over,
        };
        ensure!(!begun.is_empty(), "no node has a NIC here");
        for stream in begun {
            collection.streams.push(stream.get_ref().try_clone()?);
            let room = room.clone();
            let reader = std::thread::Builder::new().name("trace".to_owned());
            let reader = reader.spawn(move || {
                let part = read(stream, &room);
                room.over.cancel();
                part
            })?;
            collection.readers.push(reader);
        }
        Ok(collection)
    }

    /// The nodes that are traced.
    pub fn nodes(&self) -> &[TracedNode] {
        &self.nodes
    }

    /// Waits until the time is over, the limit is reached, a device process has ended, or `cancel`
    /// is pulled.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn wait(&self, time: Duration, cancel: &Cancel) -> Result<()> {
        std::thread::scope(|scope| {
            let (ended, ends) = std::sync::mpsc::channel::<()>();
            let over = &self.over;
            std::thread::Builder::new().spawn_scoped(scope, move || {
                // Disconnected, or the time is over.
                let _ = ends.recv_timeout(time);
                over.cancel();
            })?;
            cancel.wait_before(over);
            drop(ended);
            Ok(())
        })
    }

    /// Ends the trace: what is under way still comes.
    ///
    /// # Errors
    /// A device process has said nothing for too long, or nonsense.
    pub fn end(self) -> Result<Collected> {
        for stream in &self.streams {
            // The only failure is a connection that has ended.
            let _ = stream.shutdown(Shutdown::Write);
        }
        let mut collected = Collected {
            nodes: self.nodes,
            ..Collected::default()
        };
        collected.nodes.sort_by_key(|node| node.node);
        for reader in self.readers {
            let part = reader.join().map_err(|_| anyhow!("a reader panicked"))??;
            collected.events.extend(part.events);
            collected.lost.extend(part.lost);
            collected.beyond += part.beyond;
        }
        // Stable: each node's events stay in their order.
        collected.events.sort_by_key(|event| event.time);
        Ok(collected)
    }
}

/// Asks for a trace: its nodes, and the stream behind the answer.
fn ask(socket: &Path, request: &Value) -> Result<(Vec<TracedNode>, BufReader<UnixStream>)> {
    let mut connection = UnixStream::connect(socket).context("connect to it")?;
    connection.set_read_timeout(Some(SILENCE))?;
    connection.set_write_timeout(Some(SILENCE))?;
    connection.write_all(format!("{request}\n").as_bytes())?;
    let mut stream = BufReader::with_capacity(1 << 16, connection);
    let mut line = String::new();
    // An answer has a line for each of at most 65,536 nodes.
    let read = stream.by_ref().take(1 << 24).read_line(&mut line);
    read.context("read its answer")?;
    let answer: Value = serde_json::from_str(&line).context("its answer is nonsense")?;
    if let Some(error) = answer.get("error") {
        bail!("{}", error.as_str().unwrap_or("an error"));
    }
    let nodes: Vec<TracedNode> = serde_json::from_value(answer["tracing"].clone())
        .context("its answer names no nodes: it is of another version")?;
    Ok((nodes, stream))
}

/// Reads events until the end of the stream.
fn read(mut stream: impl Read, room: &Room) -> Result<Part> {
    let mut part = Part::default();
    let mut record = [0; RECORD_BYTES];
    loop {
        match stream.read(&mut record[..1]) {
            Ok(0) => return Ok(part),
            Ok(_) => stream.read_exact(&mut record[1..]),
            Err(error) => Err(error),
        }
        .context("the device process says nothing more")?;
        let event = Event::read(&record);
        let event = event.map_err(|_| anyhow!("the device process sends what is no event"))?;
        if event.what == What::Lost {
            *part.lost.entry(event.at).or_default() += event.bytes;
        }
        match room.take() {
            true => part.events.push(event),
            false => part.beyond += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time: u64, what: What, bytes: u64) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(&time.to_le_bytes());
        record[16..24].copy_from_slice(&bytes.to_le_bytes());
        record[32] = 3;
        record[46] = what as u8;
        record
    }

    fn room(limit: usize) -> Room {
        Room {
            kept: AtomicUsize::new(0),
            limit,
            over: Cancel::new().unwrap(),
        }
    }

    #[test]
    fn a_stream_is_read_to_its_end_and_no_further_than_the_limit() {
        let events = [
            event(5, What::Sent, 0),
            event(6, What::Lost, 40),
            event(7, What::Lost, 2),
            event(8, What::Sent, 0),
        ];
        let all = events.concat();
        let plenty = room(5);
        let part = read(&all[..], &plenty).unwrap();
        assert_eq!((part.events.len(), part.beyond), (4, 0));
        assert_eq!(part.lost, BTreeMap::from([(3, 42)]));
        assert!(!plenty.over.is_cancelled());
        let little = room(2);
        let part = read(&all[..], &little).unwrap();
        assert_eq!((part.events.len(), part.beyond), (2, 2));
        assert_eq!(part.lost[&3], 42, "what is lost is counted all the same");
        assert!(little.over.is_cancelled());
    }

    #[test]
    fn what_is_no_event_or_half_of_one_is_an_error() {
        let mut wrong = event(5, What::Sent, 0);
        wrong[46] = 0;
        assert!(read(&wrong[..], &room(9)).is_err());
        assert!(read(&event(5, What::Sent, 0)[..47], &room(9)).is_err());
    }

    #[test]
    fn a_process_that_refuses_is_quoted_and_ends_what_has_begun() {
        let directory = tempfile::tempdir().unwrap();
        let [good, bad] = ["good", "bad"].map(|name| directory.path().join(name));
        let answers = [
            "{\"tracing\":[{\"node\":3,\"name\":\"d\"}]}\n",
            "{\"error\":\"node 4 (e) is traced already\"}\n",
        ];
        let servers: Vec<_> = [&good, &bad]
            .into_iter()
            .zip(answers)
            .map(|(path, answer)| {
                let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
                std::thread::spawn(move || {
                    let mut client = listener.accept().unwrap().0;
                    client.write_all(answer.as_bytes()).unwrap();
                    let mut said = String::new();
                    client.read_to_string(&mut said).unwrap();
                    said
                })
            })
            .collect();
        let settings = Settings {
            time: Duration::from_secs(1),
            nodes: vec!["d".to_owned()],
            sample: 7,
            limit: 10,
            output: PathBuf::new(),
            json: false,
        };
        let error = Collection::begin(&[good, bad], &settings).err().unwrap();
        let text = format!("{error:#}");
        assert!(text.contains("node 4 (e) is traced already"), "{text}");
        for server in servers {
            // It returns when the connection is closed.
            let said: Value = serde_json::from_str(&server.join().unwrap()).unwrap();
            let asked = json!({ "cmd": "trace", "sample": 7, "nodes": ["d"] });
            assert_eq!(said, asked);
        }
    }
}
