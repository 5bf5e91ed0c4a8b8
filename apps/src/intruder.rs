//! A process that tries to reach what is not its own: memory of another process,
//! windows of others, segments with wrong keys. It succeeds if every attempt is
//! refused in the way that the ABI says.

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::{Nic, NodeId, Port, RemoteSegment, SegmentName, Status};
use qnic_abi::command::{Descriptor, Opcode};
use qnic_apps::report::Attempt;

use crate::forbidden_maps;
use crate::hold::READ_ONLY;
use crate::memory::Exported;
use crate::options::{DATA, REQUEST, SOURCE, START_LIMIT};
use crate::raw::{Answer, RawProcess};

/// Options of the intruder.
#[derive(Args)]
pub(crate) struct Options {
    /// Node of the `hold` process to attack; may be this node
    #[arg(long)]
    peer: u16,
    /// Its port
    #[arg(long, default_value_t = 10)]
    peer_port: u16,
    /// Also try forbidden mappings of this device file
    #[arg(long)]
    device: Option<String>,
    /// Tell the holder to end afterwards
    #[arg(long)]
    release: bool,
}

/// Makes all attempts; fails if one was not refused.
pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let mut attempts = Vec::new();
    if let Some(device) = &options.device {
        attempts.extend(forbidden_maps::attempts(device)?);
        attempts.extend(forbidden_maps::attempts_registered(device)?);
    }
    attempts.extend(through_the_library(&nic, options)?);
    attempts.extend(by_forged_commands(&nic, options)?);
    let mut reached = 0;
    for attempt in &attempts {
        println!("{}", serde_json::to_string(attempt)?);
        reached += usize::from(!attempt.refused);
    }
    ensure!(reached == 0, "{reached} attempts were not refused");
    Ok(())
}

fn through_the_library(nic: &Nic, options: &Options) -> Result<Vec<Attempt>> {
    let (node, port) = (NodeId(options.peer), Port(options.peer_port));
    let endpoint = nic.register(Port(0)).context("register")?;
    let import = |name| endpoint.import(node, port, name, START_LIMIT);
    let read_only = import(READ_ONLY).context("import the read-only segment")?;
    let data = import(DATA).context("import the writable segment")?;
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
    expect(
        "write inline to a read-only segment",
        endpoint.write_fenced(&read_only, 8, b"intruder"),
        denied,
    );
    expect(
        "write pages to a read-only segment",
        endpoint.write_fenced(&read_only, 0, memory.part(0, 60_000)),
        denied,
    );
    expect(
        "write beyond the end of a segment",
        endpoint.write_fenced(&data, data.len() - 4, b"intruder"),
        None,
    );
    let unexported = vec![0x66; 5000];
    expect(
        "write from memory that is not exported",
        endpoint.write_fenced(&data, 0, &unexported[..]),
        None,
    );
    expect(
        "import a name that nobody exports",
        endpoint
            .import(node, port, SegmentName(0xdead), std::time::Duration::ZERO)
            .map(drop),
        Some(Status::NameNotFound),
    );
    expect(
        "import from a node that is not there",
        endpoint
            .import(NodeId(999), port, DATA, std::time::Duration::ZERO)
            .map(drop),
        Some(Status::NoSuchNode),
    );
    if options.release {
        endpoint.write_fenced_notify(&data, 0, &[], REQUEST)?;
    }
    Ok(attempts)
}

fn by_forged_commands(nic: &Nic, options: &Options) -> Result<Vec<Attempt>> {
    if options.release {
        return Ok(Vec::new());
    }
    let importer = nic.register(Port(0)).context("register")?;
    let (node, port) = (NodeId(options.peer), Port(options.peer_port));
    let data = importer.import(node, port, DATA, START_LIMIT)?;
    let mut raw = RawProcess::register(nic)?;
    let mut attempts = Vec::new();
    for forgery in forgeries(&data) {
        let answer = raw.issue(&forgery.descriptor)?;
        if matches!(answer, Answer::QueueStopped(_)) {
            raw.reset()?;
        }
        attempts.push(Attempt {
            what: forgery.what.into(),
            refused: forgery.wanted.contains(&answer),
            answer: format!("{answer:?}"),
        });
    }
    Ok(attempts)
}

struct Forgery {
    what: &'static str,
    descriptor: Descriptor,
    wanted: Vec<Answer>,
}

/// Commands that no correct library issues, and the answers that are right.
fn forgeries(data: &RemoteSegment) -> Vec<Forgery> {
    let good = || {
        let mut descriptor = RawProcess::inline_write(data.node().0, data.port().0);
        descriptor.remote_address = data.address().into();
        descriptor
    };
    let mut list = Vec::new();
    let mut forge = |what, change: &dyn Fn(&mut Descriptor), wanted: &[Answer]| {
        let mut descriptor = good();
        change(&mut descriptor);
        list.push(Forgery {
            what,
            descriptor,
            wanted: wanted.to_vec(),
        });
    };
    let failed = |status| [Answer::Failed(status)];
    let stopped = |status| [Answer::QueueStopped(status)];
    forge("write with key zero", &|_| (), &failed(Status::BadKey));
    forge(
        "write with a guessed key",
        &|d| d.remote_key = 0x1234_5678_9abc_def0.into(),
        &failed(Status::BadKey),
    );
    forge(
        "write to a segment that is not there",
        &|d| d.remote_segment = 200.into(),
        &failed(Status::NoSuchSegment),
    );
    forge(
        "write to segment number 65535",
        &|d| d.remote_segment = 65_535.into(),
        &failed(Status::NoSuchSegment),
    );
    forge(
        "write to a port without a process",
        &|d| d.remote_port = 4_711.into(),
        &failed(Status::NoSuchPort),
    );
    forge(
        "write to a node that is not there",
        &|d| d.remote_node = 4_711.into(),
        &failed(Status::NoSuchNode),
    );
    forge(
        "write from a local segment that is not there",
        &|d| {
            d.flags = 0;
            d.length = 100_000.into();
            d.local_address = 0x1000.into();
        },
        &failed(Status::NoSuchSegment),
    );
    forge(
        "write from an address that wraps around",
        &|d| {
            d.flags = 0;
            d.length = 100_000.into();
            d.local_address = u64::MAX.into();
        },
        &[
            Answer::Failed(Status::NoSuchSegment),
            Answer::Failed(Status::BadAddress),
        ],
    );
    forge("opcode 77", &|d| d.opcode = 77, &stopped(Status::Malformed));
    forge(
        "all flags",
        &|d| d.flags = 0xff,
        &stopped(Status::Malformed),
    );
    forge(
        "a reserved field that is not zero",
        &|d| d.reserved1 = 1.into(),
        &stopped(Status::Malformed),
    );
    forge(
        "an inline payload of 2^63 bytes",
        &|d| d.length = (1 << 63).into(),
        &stopped(Status::BadLength),
    );
    forge(
        "a read that notifies",
        &|d| {
            d.opcode = Opcode::Read as u8;
            d.flags = 1;
            d.notification = 1.into();
        },
        &stopped(Status::Malformed),
    );
    forge(
        "notification 0",
        &|d| {
            d.flags |= 1;
            d.notification = 0.into();
        },
        &stopped(Status::BadNotification),
    );
    list
}
