//! A process that tries to reach what is not its own: memory of another process, windows
//! of others, segments with wrong keys. It succeeds if every attempt is refused in the way
//! that the ABI says.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::{Nic, NodeId, RemoteSegment, SegmentName, Status};
use qnic_abi::command::{Descriptor, Opcode};
use qnic_apps::report::Attempt;

use crate::forbidden_maps;
use crate::memory_server::READ_ONLY;
use crate::node::{say_line, Exported, Peer};
use crate::options::{DATA, REQUEST, SOURCE};
use crate::raw::{Answer, RawProcess};

/// Options of the probe.
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
    let (node, port) = (NodeId(options.peer.node()), options.peer.port());
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
    let written = endpoint.write_fenced(&read_only, 8, b"intruder");
    expect("write inline to a read-only segment", written, denied);
    let written = endpoint.write_fenced(&read_only, 0, memory.part(0, 60_000));
    expect("write pages to a read-only segment", written, denied);
    let written = endpoint.write_fenced(&data, data.len() - 4, b"intruder");
    expect("write beyond the end of a segment", written, None);
    let written = endpoint.write_fenced(&data, 0, &vec![0x66; 5000][..]);
    expect("write from memory that is not exported", written, None);
    let import = |node, name| {
        let imported = endpoint.import(node, port, name, Duration::ZERO);
        imported.map(drop)
    };
    let unknown = import(node, SegmentName(0xdead));
    let wanted = Some(Status::NameNotFound);
    expect("import a name that nobody exports", unknown, wanted);
    let nowhere = import(NodeId(999), DATA);
    let wanted = Some(Status::NoSuchNode);
    expect("import from a node that is not there", nowhere, wanted);
    if options.release {
        endpoint.write_fenced_notify(&data, 0, &[], REQUEST)?;
    }
    Ok(attempts)
}

fn by_forged_commands(nic: &Nic, peer: &Peer) -> Result<Vec<Attempt>> {
    let importer = nic.register(qnic::Port(0)).context("register")?;
    let data = peer.import(&importer, DATA)?;
    let mut raw = RawProcess::register(nic)?;
    let mut attempts = Vec::new();
    for (what, descriptor, wanted) in forgeries(&data) {
        let answer = raw.issue(&descriptor)?;
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
    ($good:expr; $($what:literal, |$descriptor:ident| $change:expr => $($answer:expr),+;)*) => {
        vec![$({
            let mut changed: Descriptor = $good;
            let $descriptor = &mut changed;
            $change;
            ($what, changed, vec![$($answer),+])
        }),*]
    };
}

/// Commands that no correct library issues, and the answers that are right.
fn forgeries(data: &RemoteSegment) -> Vec<(&'static str, Descriptor, Vec<Answer>)> {
    use Answer::{Failed, QueueStopped};
    let mut good = RawProcess::inline_write(data.node().0, data.port().0);
    good.remote_address = data.address().into();
    let from_memory = |descriptor: &mut Descriptor, address: u64| {
        descriptor.flags = 0;
        descriptor.length = 100_000.into();
        descriptor.local_address = address.into();
    };
    let notify = |descriptor: &mut Descriptor, id: u32| {
        descriptor.flags |= 1;
        descriptor.notification = id.into();
    };
    forge! { good;
        "write with key zero", |d| d.remote_key = 0.into() => Failed(Status::BadKey);
        "write with a guessed key", |d| d.remote_key = 0x1234_5678_9abc_def0.into()
            => Failed(Status::BadKey);
        "write to a segment that is not there", |d| d.remote_segment = 200.into()
            => Failed(Status::NoSuchSegment);
        "write to segment number 65535", |d| d.remote_segment = 65_535.into()
            => Failed(Status::NoSuchSegment);
        "write to a port without a process", |d| d.remote_port = 4_711.into()
            => Failed(Status::NoSuchPort);
        "write to a node that is not there", |d| d.remote_node = 4_711.into()
            => Failed(Status::NoSuchNode);
        "write from a local segment that is not there", |d| from_memory(d, 0x1000)
            => Failed(Status::NoSuchSegment);
        "write from an address that wraps around", |d| from_memory(d, u64::MAX)
            => Failed(Status::NoSuchSegment), Failed(Status::BadAddress);
        "opcode 77", |d| d.opcode = 77 => QueueStopped(Status::Malformed);
        "all flags", |d| d.flags = 0xff => QueueStopped(Status::Malformed);
        "a reserved field that is not zero", |d| d.reserved1 = 1.into()
            => QueueStopped(Status::Malformed);
        "an inline payload of 2^63 bytes", |d| d.length = (1 << 63).into()
            => QueueStopped(Status::BadLength);
        "a read that notifies", |d| {
            d.opcode = Opcode::Read as u8;
            d.flags = 0;
            notify(d, 1);
        } => QueueStopped(Status::Malformed);
        "notification 0", |d| notify(d, 0) => QueueStopped(Status::BadNotification);
    }
}
