//! What a packet costs both NICs together, from the command to its completion, without
//! I/O: two NICs in one thread, resident pages, frames that arrive by a call.
//!
//! `packet PATH SIZE COUNT [BATCH]` sends COUNT writes of SIZE bytes (8, inline, or 4096), 32 at a
//! time or BATCH, on a PATH that is `lossless` (neither copies nor timers), `reliable` (all of
//! the transport, nothing is lost), `delayed` (by 10 µs, in order) or `reordered` (by 10 to
//! 30 µs, so that most frames arrive before others that were sent earlier: beside `delayed`, what
//! it saves that a frame is the next in order, U7). It prints nanoseconds for each, and instructions, or a
//! minus sign and why they cannot be counted. `qnic bench engine` runs it; where there is no
//! counter, under callgrind, twice, so that what is not of a packet drops out.
//!
//! `packet frame 8 COUNT` has no NIC: it fills frames in, copies them as a wire does, and checks
//! their lengths, which is the least that a frame can take.

use std::hint::black_box;
use std::time::Instant;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use qnic_abi::client::Command;
use qnic_abi::wire::{Envelope, Frame, HEADER_BYTES, WIRE_VERSION};
use qnic_abi::PAGE_SIZE;
use qnic_nic::testing::{LossyWire, Net, Party};
use qnic_nic::Limits;
use zerocopy::FromZeros;

/// Where segments begin.
const ADDRESS: u64 = 0x100_0000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [path, _, count] = &arguments[..] {
        if let ("frame", Ok(count)) = (path.as_str(), count.parse()) {
            return frames(count);
        }
    }
    let wanted = match &arguments[..] {
        [path, size, count] => parse(path, size, count, "32"),
        [path, size, count, batch] => parse(path, size, count, batch),
        _ => None,
    };
    let Some((path, size, count, batch)) = wanted else {
        eprintln!("usage: packet frame|lossless|reliable|delayed|reordered 8|4096 COUNT [BATCH]");
        std::process::exit(2);
    };
    let (source, command) = prepare(path, size);
    // Known to each other, caches warm.
    run(&source, &command, (4, batch));
    let batches = count / batch;
    let mut counter = counter();
    let start = Instant::now();
    run(&source, &command, (batches, batch));
    let time = start.elapsed().as_nanos() as f64;
    let instructions = counter.as_mut().map_err(|error| error.to_string());
    let instructions =
        instructions.and_then(|counter| counter.read().map_err(|error| error.to_string()));
    let packets = (batches * batch).max(1) as f64;
    match instructions {
        Ok(instructions) => println!("{:.1} {:.1}", time / packets, instructions as f64 / packets),
        Err(error) => println!("{:.1} - {error}", time / packets),
    }
}

/// What carries the frames.
#[derive(Clone, Copy)]
enum Path {
    Lossless,
    Reliable,
    Delayed { jitter: u64 },
}

fn parse(path: &str, size: &str, count: &str, batch: &str) -> Option<(Path, u64, u64, u64)> {
    let path = match path {
        "lossless" => Path::Lossless,
        "reliable" => Path::Reliable,
        "delayed" => Path::Delayed { jitter: 0 },
        "reordered" => Path::Delayed { jitter: 40_000 },
        _ => return None,
    };
    let size = match size {
        "8" => 8,
        "4096" => PAGE_SIZE as u64,
        _ => return None,
    };
    let batch = batch.parse().ok().filter(|batch| *batch > 0)?;
    Some((path, size, count.parse().ok()?, batch))
}

/// Counts instructions of this thread outside of the kernel, from now on.
fn counter() -> std::io::Result<Counter> {
    let mut counter = Builder::new(Hardware::INSTRUCTIONS).build()?;
    counter.enable()?;
    Ok(counter)
}

fn prepare(path: Path, size: u64) -> (Party, Command) {
    let net = Net::new(2, 256, 8, &Limits::default());
    // As the wire within an engine has them.
    net.cluster().receipts = true;
    match path {
        Path::Lossless => {}
        Path::Reliable => net.cluster().lossless = false,
        Path::Delayed { jitter } => {
            let wire = LossyWire {
                jitter,
                ..LossyWire::steady(10_000)
            };
            net.cluster().set_lossy_wire(wire, 1);
        }
    }
    let party = |node| {
        let range = (ADDRESS, PAGE_SIZE as u64);
        net.party_at(node, 1, range).present()
    };
    let (source, target) = (party(0), party(1));
    let (from, to) = (source.segment, target.segment);
    let command = match size {
        8 => Command::inline_write(to.to(64), 8),
        _ => Command::write(from.at(0), to.to(0), size),
    };
    (source, command)
}

/// Fills so many frames in, copies them and checks them.
fn frames(count: u64) {
    let mut wire = [0; HEADER_BYTES];
    for number in 1..=count {
        let mut frame = Frame::new_zeroed();
        let envelope = &mut frame.envelope;
        envelope.version = WIRE_VERSION;
        envelope.body_length = (HEADER_BYTES - size_of::<Envelope>()) as u8;
        envelope.source_node = 1.into();
        envelope.destination_node = 2.into();
        envelope.source_session = 3.into();
        envelope.destination_session = 4.into();
        envelope.sequence = number.into();
        envelope.acknowledge = number.into();
        envelope.delivered = number.into();
        envelope.operation = number.into();
        let header = black_box(&frame).header();
        wire[..header.len()].copy_from_slice(header);
        assert!(black_box(Frame::from_wire(black_box(&wire))).is_some());
    }
}

/// Issues so many batches, and has both NICs work until each is complete.
fn run(source: &Party, command: &Command, (batches, batch): (u64, u64)) {
    let late = Limits::default().ack_delay + 1;
    for _ in 0..batches {
        for _ in 0..batch {
            source.issue(command, &[]).expect("room");
        }
        source.net.run();
        // An acknowledgement may wait for so long.
        source.net.advance(late);
        source.net.run();
        assert_eq!(source.done().0, source.issued(), "not complete");
    }
}
