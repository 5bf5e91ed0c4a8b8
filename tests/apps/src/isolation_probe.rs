//! A process that tries to reach what is not its own: memory of another process, windows
//! of others, segments with wrong keys, segments and notifications that export options guard.
//! It succeeds if every attempt is refused in the way that the ABI says.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::{Nic, NodeId, RemoteSegment, SegmentName, Status};
use qnic_abi::client::{Command, Memory, Remote};
use qnic_abi::command::{CommandBody, Descriptor};
use qnic_abi::rdma::{Opcode, ReadCommand};
use qnic_abi::{Key, Port, SegmentId};
use qnic_apps::report::Attempt;

use crate::memory_server::READ_ONLY;
use crate::raw::{Answer, RawProcess};
use crate::{forbidden_maps, guarded};
use qnic_apps::demo::node::{say_line, Exported, Peer};
use qnic_apps::demo::options::{DATA, REQUEST, SOURCE};

#[derive(Args)]
pub(crate) struct Options {
    /// The `memory-server` to attack; it may be on this node
    #[command(flatten)]
    peer: Peer,
    /// Also try forbidden mappings of this device file
    #[arg(long)]
    device: Option<String>,
    /// Tell the server to end afterwards
    #[arg(long)]
    release: bool,
}

/// Makes all attempts; fails if one was not refused.
pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let mut attempts = Vec::new();
    if let Some(device) = &options.device {
        attempts.extend(forbidden_maps::attempts(device)?);
    }
    attempts.extend(through_the_library(&nic, options)?);
    if !options.release {
        attempts.extend(by_forged_commands(&nic, &options.peer)?);
    }
    for attempt in &attempts {
        say_line(attempt)?;
    }
    let reached = attempts.iter().filter(|attempt| !attempt.refused).count();
    ensure!(reached == 0, "{reached} attempts were not refused");
    Ok(())
}

fn through_the_library(nic: &Nic, options: &Options) -> Result<Vec<Attempt>> {
    let (node, port) = (NodeId(options.peer.peer), options.peer.port());
    let endpoint = nic.register(qnic::Port(0)).context("register")?;
    let read_only = options.peer.import(&endpoint, READ_ONLY)?;
    let data = options.peer.import(&endpoint, DATA)?;
    let memory = Exported::new(&endpoint, SOURCE, 64 * 1024)?;
    let mut attempts = Vec::new();
    let mut expect = |what: &str, result: qnic::Result<()>, wanted: Option<Status>| {
        let refused = result
            .as_ref()
            .is_err_and(|error| wanted.is_none() || error.status() == wanted);
        let answer = result.map_or_else(|error| error.to_string(), |()| "done".into());
        attempts.push(Attempt {
            what: what.into(),
            refused,
            answer,
        });
    };
    let denied = Some(Status::AccessDenied);
    let written = endpoint.write(&read_only, 8, b"intrudes").fenced();
    expect("write inline to a read-only segment", written, denied);
    let written = endpoint
        .write(&read_only, 0, memory.part(0, 60_000))
        .fenced();
    expect("write pages to a read-only segment", written, denied);
    let written = endpoint.write(&data, data.len() - 4, b"intrudes").fenced();
    expect("write beyond the end of a segment", written, None);
    let written = endpoint.write(&data, 0, &vec![0x66; 5000][..]).fenced();
    expect("write from memory that is not exported", written, None);
    let import = |node, name| {
        let imported = endpoint.import(node, port, name, Duration::ZERO);
        imported.map(drop)
    };
    let unknown = import(node, SegmentName(0xdead));
    let wanted = Some(Status::NameNotFound);
    expect("import a name that no process exports", unknown, wanted);
    let nowhere = import(NodeId(999), DATA);
    let wanted = Some(Status::NoSuchNode);
    expect("import from a node that is not there", nowhere, wanted);
    for (what, result, wanted) in guarded::attempts(&endpoint, &options.peer, &memory)? {
        expect(&what, result, wanted);
    }
    if options.release {
        endpoint.write(&data, 0, &[]).notify(REQUEST).fenced()?;
    }
    Ok(attempts)
}

fn by_forged_commands(nic: &Nic, peer: &Peer) -> Result<Vec<Attempt>> {
    let importer = nic.register(qnic::Port(0)).context("register")?;
    let data = peer.import(&importer, DATA)?;
    let mut raw = RawProcess::register(nic)?;
    let mut attempts = Vec::new();
    for (what, descriptor, wanted) in forgeries(&data) {
        let answer = raw.issue_raw(&descriptor)?;
        if matches!(answer, Answer::QueueStopped(_)) {
            raw.reset()?;
        }
        attempts.push(Attempt {
            what: what.into(),
            refused: wanted.contains(&answer),
            answer: format!("{answer:?}"),
        });
    }
    Ok(attempts)
}

/// A list of forgeries: what is tried; the change to a good write; the right answers.
macro_rules! forge {
    ($good:expr; $($what:literal, |$command:ident| $change:expr => $($answer:expr),+;)*) => {
        vec![$({
            let mut changed: Command = $good;
            let $command = &mut changed;
            $change;
            ($what, changed.descriptor(), vec![$($answer),+])
        }),*]
    };
}

/// Commands that no correct library issues, and the answers that are right.
fn forgeries(data: &RemoteSegment) -> Vec<(&'static str, Descriptor, Vec<Answer>)> {
    use Answer::{Failed, QueueStopped};
    let remote = Remote {
        node: data.node(),
        port: data.port(),
        memory: Memory::default(),
    };
    let mut good = Command::inline_write(remote, 8).publish();
    good.remote.memory.address = data.address();
    let from_memory = |command: &mut Command, address: u64| {
        command.inline_length = 0;
        command.length = 100_000;
        command.local = Memory {
            address,
            ..Memory::default()
        };
    };
    let mut reserved: ReadCommand = good.descriptor().read();
    reserved.header.opcode = Opcode::Read as u8;
    reserved.header.inline_length = 0;
    reserved.reserved = 1.into();
    let mut forgeries = forge! { good;
        "write with key zero", |c| c.remote.memory.key = Key(0) => Failed(Status::BadKey);
        "write with a guessed key", |c| c.remote.memory.key = Key(0x1234_5678_9abc_def0)
            => Failed(Status::BadKey);
        "write to a segment that is not there", |c| c.remote.memory.segment = SegmentId(200)
            => Failed(Status::NoSuchSegment);
        "write to segment number 65535", |c| c.remote.memory.segment = SegmentId(65_535)
            => Failed(Status::NoSuchSegment);
        "write to a port without a process", |c| c.remote.port = Port(4_711)
            => Failed(Status::NoSuchPort);
        "write to a node that is not there", |c| c.remote.node = NodeId(4_711)
            => Failed(Status::NoSuchNode);
        "write from a local segment that is not there", |c| from_memory(c, 0x1000)
            => Failed(Status::NoSuchSegment);
        "write from an address that wraps around", |c| from_memory(c, u64::MAX)
            => Failed(Status::NoSuchSegment), Failed(Status::BadAddress);
        "opcode 77", |c| c.opcode = 77 => QueueStopped(Status::Malformed);
        "all flags", |c| c.flags = 0xff => QueueStopped(Status::Malformed);
        "an inline payload of 2^63 bytes", |c| c.length = 1 << 63
            => QueueStopped(Status::BadLength);
        "an inline payload beyond the entry", |c| c.inline_length = 255
            => QueueStopped(Status::BadLength);
        "a read with an inline payload", |c| c.opcode = Opcode::Read as u8
            => QueueStopped(Status::Malformed);
    };
    let stopped = vec![QueueStopped(Status::Malformed)];
    let what = "a reserved field that is not zero";
    forgeries.push((what, reserved.descriptor(), stopped));
    forgeries
}
