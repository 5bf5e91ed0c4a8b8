//! The time line, as a file in the trace event format (JSON), which Perfetto reads.
//!
//! ```text
//!   node n0 (process)                              node n1 (process)
//!   ├ counters: operations, credits, under way     ├ …
//!   ├ port 7       ▒ write 8 B to n1 ▒▒▒▒▒▒▒▒▒▒    │
//!   │                queued sending answered …     │
//!   │                           └───── arrow ──────┼─► Write 8 B ▒▒   from n0
//!   └ from n1      what comes from there           └
//! ```
//! A process is a node, a thread a *track*. Slices of one thread have to lie in each other, and
//! operations of a process overlap: what overlaps has tracks of its own, side by side.
//!
//! # Invariants
//! - Slices of a track lie in each other or behind each other, whatever the events say.
//! - Each arrow has one beginning and one end, in slices that are there.
//! - Times are microseconds since the first event, with three decimals: nanoseconds.
//!
//! An arrow of a command goes from the requester to the first frame of an operation that arrives, and from the last
//! one that came before the answer to the answer. What is no command has an arrow for each frame, from
//! where it was sent to where it came.

use std::collections::BTreeMap;
use std::io::{self, Write};

use qnic_abi::datagram::kind::DATAGRAM;
use qnic_nic::trace::{Event, Scope, What};
use serde_json::{json, Value};

use crate::trace::collect::Collected;
use crate::trace::names::{self, Nodes};
use crate::trace::operations::{Call, Operation, Operations, SeenFrame, Wait};

/// What a track is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TrackKind {
    /// Operations of the process on a port.
    Port(u16),
    /// Frames from a node.
    From(u16),
    /// Frames to a node.
    To(u16),
}

/// A place in the file: process and thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Track {
    process: u32,
    thread: u32,
}

/// What stands on a track.
#[derive(Debug, Clone, Copy)]
struct Slice {
    node: u16,
    kind: TrackKind,
    from: u64,
    to: u64,
    /// Its operation, and what of it.
    operation: usize,
    part: Part,
}

/// What of an operation a slice is: the command, or one of its frames or calls.
#[derive(Debug, Clone, Copy)]
enum Part {
    Own,
    Frame(usize),
    Call(usize),
    Send(usize),
}

/// Tracks side by side: when each is free again, and its thread.
#[derive(Debug, Default)]
struct Tracks {
    tracks: BTreeMap<(u16, TrackKind), Vec<(u64, u32)>>,
    threads: BTreeMap<u16, u32>,
}

impl Tracks {
    /// A track that is free from `from` on; it is taken until `to`. Calls come by `from`.
    fn take(&mut self, node: u16, kind: TrackKind, from: u64, to: u64) -> Track {
        let tracks = self.tracks.entry((node, kind)).or_default();
        let free = tracks.iter_mut().find(|track| track.0 <= from);
        let thread = match free {
            Some(track) => {
                track.0 = to;
                track.1
            }
            None => {
                let threads = self.threads.entry(node).or_default();
                *threads += 1;
                tracks.push((to, *threads));
                *threads
            }
        };
        Track {
            process: process(node),
            thread,
        }
    }
}

/// A process that is 0 is none to Perfetto.
fn process(node: u16) -> u32 {
    u32::from(node) + 1
}

/// The file.
struct File<'a, W> {
    out: &'a mut W,
    begin: u64,
    first: bool,
}

impl<W: Write> File<'_, W> {
    fn put(&mut self, event: &Value) -> io::Result<()> {
        let before = if std::mem::take(&mut self.first) {
            "\n"
        } else {
            ",\n"
        };
        self.out.write_all(before.as_bytes())?;
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }

    /// Microseconds since the beginning.
    fn time(&self, time: u64) -> f64 {
        microseconds(time.saturating_sub(self.begin))
    }

    fn slice(
        &mut self,
        track: Track,
        name: &str,
        (from, to): (u64, u64),
        arguments: &Value,
    ) -> io::Result<()> {
        self.put(&json!({
            "ph": "X", "cat": "qnic", "name": name, "pid": track.process, "tid": track.thread,
            "ts": self.time(from), "dur": microseconds(to - from), "args": arguments,
        }))
    }

    /// Waits within a span, one behind the other.
    fn waits(
        &mut self,
        track: Track,
        waits: &[Wait],
        (mut from, to): (u64, u64),
    ) -> io::Result<()> {
        for wait in waits {
            let begin = wait.from.clamp(from, to);
            let end = wait.to.unwrap_or(to).clamp(begin, to);
            if wait.from < to && end > begin {
                self.slice(track, wait.name, (begin, end), &json!({}))?;
                from = end;
            }
        }
        Ok(())
    }

    fn instant(&mut self, track: Track, name: &str, time: u64) -> io::Result<()> {
        self.put(&json!({
            "ph": "i", "s": "t", "cat": "qnic", "name": name, "pid": track.process,
            "tid": track.thread, "ts": self.time(time),
        }))
    }

    fn counter(&mut self, node: u16, name: &str, time: u64, value: u64) -> io::Result<()> {
        self.put(&json!({
            "ph": "C", "name": name, "pid": process(node), "ts": self.time(time),
            "args": { "value": value },
        }))
    }

    fn arrow(&mut self, begins: bool, id: u64, track: Track, time: u64) -> io::Result<()> {
        let mut event = json!({
            "ph": if begins { "s" } else { "f" }, "cat": "qnic", "name": "frames", "id": id,
            "pid": track.process, "tid": track.thread, "ts": self.time(time),
        });
        if !begins {
            event["bp"] = "e".into();
        }
        self.put(&event)
    }
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// Where everything stands.
struct Placed {
    slices: Vec<(Slice, Track)>,
    /// The track of each operation, if its fetch was seen.
    own: Vec<Option<Track>>,
    /// Those of its frames.
    frames: Vec<Vec<Track>>,
    /// Those of what it has sent.
    sends: Vec<Vec<Track>>,
    tracks: Tracks,
}

impl Placed {
    fn new(operations: &Operations) -> Self {
        let count = operations.all.len();
        let mut placed = Placed {
            slices: Vec::new(),
            own: vec![None; count],
            frames: vec![Vec::new(); count],
            sends: vec![Vec::new(); count],
            tracks: Tracks::default(),
        };
        let nowhere = Track {
            process: 0,
            thread: 0,
        };
        for (place, operation) in operations.all.iter().enumerate() {
            placed.frames[place].resize(operation.frames.len(), nowhere);
            placed.sends[place].resize(operation.sends.len(), nowhere);
        }
        let mut slices: Vec<_> = slices(operations).collect();
        slices.sort_by_key(|slice| slice.from);
        for slice in slices {
            let track = placed
                .tracks
                .take(slice.node, slice.kind, slice.from, slice.to);
            match slice.part {
                Part::Own => placed.own[slice.operation] = Some(track),
                Part::Frame(frame) => placed.frames[slice.operation][frame] = track,
                Part::Send(sent) => placed.sends[slice.operation][sent] = track,
                Part::Call(_) => {}
            }
            placed.slices.push((slice, track));
        }
        placed
    }
}

/// Writes a trace. Returns the number of arrows.
///
/// # Errors
/// Those of `out`.
pub fn write<W: Write>(
    out: &mut W,
    collected: &Collected,
    operations: &Operations,
) -> io::Result<u64> {
    let nodes = Nodes::new(&collected.nodes);
    let lost = collected.lost.iter();
    let lost = lost.map(|(node, lost)| (nodes.name(*node), *lost));
    let other = json!({
        "events lost at": lost.collect::<BTreeMap<_, _>>(),
        "events beyond the limit": collected.beyond,
    });
    write!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{other},\"traceEvents\":["
    )?;
    let mut file = File {
        out,
        begin: operations.begin,
        first: true,
    };
    let mut placed = Placed::new(operations);
    for (slice, track) in &placed.slices {
        let operation = &operations.all[slice.operation];
        let span = (slice.from, slice.to);
        match slice.part {
            Part::Own => own_slice(&mut file, *track, operation, span)?,
            Part::Frame(frame) => {
                let arrival = &operation.frames[frame];
                arrived_slice(&mut file, *track, operation, arrival, span)?;
            }
            Part::Call(call) => {
                let call = &operation.calls[call];
                call_slice(&mut file, *track, operation, call, span)?;
            }
            Part::Send(sent) => {
                let sent = &operation.sends[sent];
                let name = frame_name(sent.kind, sent.bytes);
                let arguments = json!({ "of": operation.name });
                file.slice(*track, &name, span, &arguments)?;
            }
        }
    }
    let arrows = arrows(&mut file, operations, &placed)?;
    marks(&mut file, operations, &mut placed)?;
    counters(&mut file, &collected.events)?;
    described(&mut file, &nodes, collected, &placed.tracks)?;
    write!(file.out, "\n]}}\n")?;
    Ok(arrows)
}

/// All slices.
fn slices(operations: &Operations) -> impl Iterator<Item = Slice> + '_ {
    let end = operations.end;
    let all = operations.all.iter().enumerate();
    all.flat_map(move |(number, operation)| {
        let own = operation.fetched.map(|from| {
            let known = operation.stages().unwrap_or_default();
            let last = known.last().map_or(from, |(.., to)| *to);
            let to = match operation.ended {
                Some(_) => last,
                None => end.max(last),
            };
            Slice {
                node: operation.requester,
                kind: TrackKind::Port(operation.port),
                from,
                to,
                operation: number,
                part: Part::Own,
            }
        });
        let frames = operation.frames.iter().enumerate();
        let frames = frames.map(move |(place, arrival)| Slice {
            node: arrival.at,
            kind: TrackKind::From(arrival.from),
            from: arrival.received,
            to: arrival.done.unwrap_or(end).max(arrival.received),
            operation: number,
            part: Part::Frame(place),
        });
        let shared = shared_slices(number, operation, end);
        own.into_iter().chain(frames).chain(shared)
    })
}

/// Slices of calls, and of frames from where they were sent until they have come.
fn shared_slices(
    number: usize,
    operation: &Operation,
    end: u64,
) -> impl Iterator<Item = Slice> + '_ {
    let calls = operation.calls.iter().enumerate();
    let calls = calls.map(move |(place, call)| Slice {
        node: call.at,
        kind: TrackKind::Port(call.port),
        from: call.fetched,
        to: call.ended.unwrap_or(end).max(call.fetched),
        operation: number,
        part: Part::Call(place),
    });
    let sends = operation.sends.iter().zip(operation.received()).enumerate();
    let sends = sends.map(move |(place, (sent, arrival))| Slice {
        node: sent.at,
        kind: TrackKind::To(sent.to),
        from: sent.time,
        to: arrival.map_or(sent.time, |frame| operation.frames[frame].received),
        operation: number,
        part: Part::Send(place),
    });
    calls.chain(sends)
}

/// A call, with its stages and waits in it.
fn call_slice<W: Write>(
    file: &mut File<'_, W>,
    track: Track,
    operation: &Operation,
    call: &Call,
    (from, to): (u64, u64),
) -> io::Result<()> {
    let end = match call.ended {
        Some(_) => names::status(call.status),
        None => "is under way".to_owned(),
    };
    let arguments = json!({
        "operation": format!("{:#x}", operation.id), "of": operation.name, "end": end,
    });
    file.slice(track, &call.name, (from, to), &arguments)?;
    let mut reached = from;
    for (name, from, to) in operation.call_stages(call) {
        file.slice(track, name, (from, to), &json!({}))?;
        file.waits(track, &call.waits, (from, to))?;
        reached = to;
    }
    file.waits(track, &call.waits, (reached, to))
}

/// A frame, and the bytes that it has.
fn frame_name(kind: u32, bytes: u64) -> String {
    match (names::frame(kind), bytes) {
        (kind, 0) => kind,
        (kind, bytes) => format!("{kind} {}", names::size(bytes)),
    }
}

/// An operation at its requester, with its stages and waits in it.
fn own_slice<W: Write>(
    file: &mut File<'_, W>,
    track: Track,
    operation: &Operation,
    (from, to): (u64, u64),
) -> io::Result<()> {
    let stages = operation.stages().unwrap_or_default();
    let times = stages.iter().map(|(name, from, to)| (*name, to - from));
    let end = match operation.ended {
        Some(_) => names::status(operation.status),
        None => "is under way".to_owned(),
    };
    let arguments = json!({
        "operation": format!("{:#x}", operation.id), "end": end,
        "nanoseconds": times.collect::<BTreeMap<_, _>>(),
    });
    file.slice(track, &operation.name, (from, to), &arguments)?;
    let mut reached = from;
    for (name, from, to) in stages {
        file.slice(track, name, (from, to), &json!({}))?;
        file.waits(track, &operation.waits, (from, to))?;
        reached = to;
    }
    if operation.ended.is_none() {
        file.waits(track, &operation.waits, (reached, to))?;
    }
    Ok(())
}

/// A frame where it came, with its waits in it.
fn arrived_slice<W: Write>(
    file: &mut File<'_, W>,
    track: Track,
    operation: &Operation,
    arrival: &SeenFrame,
    span: (u64, u64),
) -> io::Result<()> {
    let kind = names::frame(arrival.kind);
    let name = match arrival.refused {
        Some(status) => {
            let what = match arrival.kind == u32::from(DATAGRAM) {
                true => "dropped",
                false => "refused",
            };
            format!("{kind} {what}: {}", names::status(status))
        }
        None => frame_name(arrival.kind, arrival.bytes),
    };
    let arguments = json!({
        "operation": format!("{:#x}", operation.id), "of": operation.name,
        "complete": arrival.done.is_some(),
    });
    file.slice(track, &name, span, &arguments)?;
    file.waits(track, &arrival.waits, span)
}

/// The arrows of all operations. Returns their number.
fn arrows<W: Write>(
    file: &mut File<'_, W>,
    operations: &Operations,
    placed: &Placed,
) -> io::Result<u64> {
    let mut number = 0;
    for (place, operation) in operations.all.iter().enumerate() {
        let tracks = &placed.frames[place];
        let frames = || operation.frames.iter().zip(tracks);
        let there = |arrival: &SeenFrame| arrival.at != operation.requester;
        let first = frames().find(|(arrival, _)| there(arrival));
        // A time before the fetch comes from another NIC: the arrow begins at the fetch.
        let sent = operation.sent.zip(operation.fetched);
        let sent = sent.map(|(sent, fetched)| sent.max(fetched));
        let own = placed.own[place].zip(sent);
        let forth = first
            .zip(own)
            .map(|((arrival, track), (own, sent))| ((own, sent), (*track, arrival.received)));
        let is_command = operation.scope == Scope::Command;
        let back = frames().find(|(arrival, _)| is_command && !there(arrival));
        let asked = back.and_then(|(back, _)| {
            let before = |arrival: &SeenFrame| there(arrival) && arrival.received <= back.received;
            frames().rfind(|(arrival, _)| before(arrival))
        });
        let back = back
            .zip(asked)
            .map(|((back, to), (asked, from))| ((*from, asked.received), (*to, back.received)));
        let shared = operation.sends.iter().zip(operation.received());
        let shared = shared
            .zip(&placed.sends[place])
            .filter_map(|((sent, arrival), track)| {
                let arrival = arrival?;
                let came = operation.frames[arrival].received;
                Some(((*track, sent.time), (tracks[arrival], came)))
            });
        for ((from, begins), (to, ends)) in forth.into_iter().chain(back).chain(shared) {
            if begins <= ends {
                file.arrow(true, number, from, begins)?;
                file.arrow(false, number, to, ends)?;
                number += 1;
            }
        }
    }
    Ok(number)
}

/// What happens to frames: on the track of the operation, or of frames from its other end.
fn marks<W: Write>(
    file: &mut File<'_, W>,
    operations: &Operations,
    placed: &mut Placed,
) -> io::Result<()> {
    for (place, operation) in operations.all.iter().enumerate() {
        for mark in &operation.marks {
            let own = placed.own[place].filter(|_| mark.at == operation.requester);
            let track = own.unwrap_or_else(|| {
                let kind = TrackKind::From(mark.peer);
                placed.tracks.take(mark.at, kind, u64::MAX, u64::MAX)
            });
            let name = match mark.what {
                What::Nak => format!("refused by the peer: {}", names::status(mark.code)),
                _ => format!("{} sent again", names::frame(mark.code)),
            };
            file.instant(track, &name, mark.time)?;
        }
    }
    Ok(())
}

/// Counters, and where events were lost.
fn counters<W: Write>(file: &mut File<'_, W>, events: &[Event]) -> io::Result<()> {
    for event in events {
        match event.what {
            What::Load => {
                file.counter(event.at, "operations", event.time, event.bytes)?;
                file.counter(event.at, "credits of peers", event.time, event.detail)?;
            }
            What::Fetched if event.scope == Scope::Command => {
                let name = format!("under way, port {}", event.port);
                file.counter(event.at, &name, event.time, event.depth.into())?;
            }
            What::Lost => file.put(&json!({
                "ph": "i", "s": "p", "cat": "qnic", "pid": process(event.at), "tid": 0,
                "ts": file.time(event.time),
                "name": format!("{} events lost up to here: the buffer was full", event.bytes),
            }))?,
            _ => {}
        }
    }
    Ok(())
}

/// Names of processes and tracks.
fn described<W: Write>(
    file: &mut File<'_, W>,
    nodes: &Nodes,
    collected: &Collected,
    tracks: &Tracks,
) -> io::Result<()> {
    let mut numbers: Vec<_> = collected.nodes.iter().map(|node| node.node).collect();
    numbers.extend(tracks.threads.keys());
    numbers.sort_unstable();
    numbers.dedup();
    for node in numbers {
        file.put(&json!({
            "ph": "M", "name": "process_name", "pid": process(node),
            "args": { "name": format!("{} (node {node})", nodes.name(node)) },
        }))?;
    }
    for (place, ((node, kind), tracks)) in (0u32..).zip(&tracks.tracks) {
        let name = match kind {
            TrackKind::Port(port) => format!("port {port}"),
            TrackKind::From(from) => format!("from {}", nodes.name(*from)),
            TrackKind::To(to) => format!("to {}", nodes.name(*to)),
        };
        for (_, thread) in tracks {
            let track = (process(*node), *thread);
            for (kind, arguments) in [
                ("thread_name", json!({ "name": name })),
                ("thread_sort_index", json!({ "sort_index": place })),
            ] {
                file.put(&json!({
                    "ph": "M", "name": kind, "pid": track.0, "tid": track.1, "args": arguments,
                }))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
