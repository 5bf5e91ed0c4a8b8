//! Wrong, stale and insufficient keys at both ends of a transfer: no memory changes, and
//! the issuer learns why (N2, N11).
//!
//! ```text
//!   key-tester (raw commands)                 key-owner
//!     own segment: pattern                      OPEN   read, write ─┐
//!     every command with one thing wrong  ───►  SHOWN  read only    ├ patterns
//!     RENEW: OPEN gets another key        ───►  HIDDEN write only  ─┘
//!     END                                 ───►  compares everything
//! ```

use std::time::Instant;

use anyhow::{ensure, Context, Result};
use qnic::{uapi, Access, Buffer, CounterSource, Nic, NotificationId, SegmentName, Status};
use qnic_abi::client::{Command, Memory, Remote};
use qnic_abi::export::ExportOptions;
use qnic_abi::rdma::Opcode;
use qnic_abi::PAGE_SIZE;
use qnic_abi::{Key, NodeId, SegmentId};
use qnic_apps::demo::pattern;
use qnic_apps::report::{Attempt, KeysReport};

use crate::raw::{Answer, RawProcess};
use qnic_apps::demo::node::{register, say, say_line, take, Peer};
use qnic_apps::demo::options::{notification, ANSWER_LIMIT, START_LIMIT, TARGET_PORT};

/// The owner's segments.
const OPEN: SegmentName = SegmentName(60);
const SHOWN: SegmentName = SegmentName(61);
const HIDDEN: SegmentName = SegmentName(62);
/// Bytes of each.
const SIZE: usize = 4 * PAGE_SIZE;
/// The owner is to export OPEN anew.
const RENEW: NotificationId = notification(11);
/// The owner is to compare and end.
const END: NotificationId = notification(12);
/// Bytes of an attempt: over a page border, by DMA.
const LENGTH: usize = 5000;

/// The owner: fails if its memory changed.
pub(crate) fn run_owner() -> Result<()> {
    let (nic, endpoint) = register(TARGET_PORT.0)?;
    let export = |name: SegmentName, access| -> Result<_> {
        let buffer = endpoint.allocate(SIZE)?;
        buffer.write(0, &pattern::bytes(name.0, SIZE))?;
        let segment = endpoint.export(name, &buffer, access)?;
        Ok((buffer, segment))
    };
    let (open, segment) = export(OPEN, Access::all())?;
    let (shown, _shown) = export(SHOWN, Access::READ)?;
    let (hidden, _hidden) = export(HIDDEN, Access::WRITE)?;
    let told = |id| take(&endpoint, id, ANSWER_LIMIT, "wait for the tester");
    let before = refusals(&nic)?;
    say("owning", 3 * SIZE)?;
    told(RENEW)?;
    segment.unexport()?;
    let _open = endpoint.export(OPEN, &open, Access::all())?;
    told(END)?;
    for (name, buffer) in [(OPEN, &open), (SHOWN, &shown), (HIDDEN, &hidden)] {
        unchanged(name, buffer)?;
    }
    say("unchanged", refusals(&nic)? - before)
}

/// Commands and frames that this node's NIC has refused for a key, an address or an
/// access. A host-mode NIC forgets them with its process, so each side asks itself.
fn refusals(nic: &Nic) -> Result<u64> {
    Ok(nic.counters(CounterSource::Nic)?["protection_errors"])
}

fn unchanged(name: SegmentName, buffer: &Buffer) -> Result<()> {
    let same = buffer.read_vec(0, SIZE)? == pattern::bytes(name.0, SIZE);
    ensure!(same, "segment {} was changed", name.0);
    Ok(())
}

/// The tester: fails if an attempt was not refused as it must be.
pub(crate) fn run_tester(owner: &Peer) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let mut tester = Tester {
        raw: RawProcess::register(&nic)?,
        memory: nic.allocate(SIZE)?,
        owner,
        report: KeysReport::default(),
    };
    let before = refusals(&nic)?;
    tester.memory.write(0, &pattern::bytes(OPEN.0, SIZE))?;
    let local = tester.export(1)?;
    let open = tester.import(OPEN)?;
    tester.wrong(&local, &open)?;
    tester.insufficient(&local)?;
    tester.stale_here(&open)?;
    tester.stale_there(&open)?;
    tester.report.counted_here = refusals(&nic)? - before;
    say("keys", tester.report)
}

/// An end of a transfer: the tester's or the owner's.
#[derive(Clone, Copy)]
enum End {
    Here,
    There,
}

struct Tester<'a> {
    raw: RawProcess,
    /// Holds the pattern of OPEN: a write that is done changes nothing.
    memory: Buffer,
    owner: &'a Peer,
    report: KeysReport,
}

impl Tester<'_> {
    /// Exports the tester's memory under one more name.
    fn export(&self, name: u64) -> Result<uapi::Export> {
        let mut call = uapi::Export {
            access: Access::all().bits().into(),
            name: name.into(),
            address: self.memory.address().into(),
            length: (SIZE as u64).into(),
            options: ExportOptions::open(),
            ..Default::default()
        };
        self.raw.process.export(&mut call).context("export")?;
        ensure!(call.status.get() == 0, "export: status {}", call.status);
        Ok(call)
    }

    fn import(&self, name: SegmentName) -> Result<uapi::Import> {
        let mut call = uapi::Import {
            node: self.owner.peer.into(),
            port: self.owner.port().0.into(),
            name: name.0.into(),
            wait_ms: (START_LIMIT.as_millis() as u32).into(),
            ..Default::default()
        };
        self.raw.process.import(&mut call).context("import")?;
        ensure!(call.status.get() == 0, "import: status {}", call.status);
        Ok(call)
    }

    fn transfer(&self, opcode: Opcode, local: &uapi::Export, remote: &uapi::Import) -> Command {
        let local = Memory {
            address: local.address.get(),
            key: Key(local.key.get()),
            segment: SegmentId(local.segment.get()),
        };
        let remote = self.remote(remote);
        Command::transfer(opcode, local, remote, LENGTH as u64).publish()
    }

    fn remote(&self, remote: &uapi::Import) -> Remote {
        Remote {
            node: NodeId(self.owner.peer),
            port: self.owner.port(),
            memory: Memory {
                address: remote.address.get(),
                key: Key(remote.key.get()),
                segment: SegmentId(remote.segment.get()),
            },
        }
    }

    /// Issues a command that must be refused with this status, by the NIC at that end.
    fn refused(&mut self, what: &str, end: End, wanted: Status, command: Command) -> Result<()> {
        let answer = self.raw.issue(&command)?;
        let attempt = Attempt {
            what: what.into(),
            refused: answer == Answer::Failed(wanted),
            answer: format!("{answer:?}"),
        };
        say_line(&attempt)?;
        ensure!(attempt.refused, "{what}: {answer:?}, not {wanted:?}");
        unchanged(OPEN, &self.memory).context("the tester's own memory")?;
        match end {
            End::Here => self.report.refused_here += 1,
            End::There => self.report.refused_there += 1,
        }
        Ok(())
    }

    fn wrong(&mut self, local: &uapi::Export, open: &uapi::Import) -> Result<()> {
        for opcode in [Opcode::Write, Opcode::Read] {
            let good = self.transfer(opcode, local, open);
            let (mut there, mut here) = (good, good);
            there.remote.memory.key.0 ^= 1;
            here.local.key.0 ^= 1 << 63;
            let what = |end| format!("{opcode:?} with a wrong key {end}");
            self.refused(&what("there"), End::There, Status::BadKey, there)?;
            self.refused(&what("here"), End::Here, Status::BadKey, here)?;
        }
        let good = self.transfer(Opcode::Write, local, open);
        self.done("a write with the right keys", &good)
    }

    fn done(&mut self, what: &str, command: &Command) -> Result<()> {
        let answer = self.raw.issue(command)?;
        ensure!(answer == Answer::Done, "{what}: {answer:?}");
        Ok(())
    }

    fn insufficient(&mut self, local: &uapi::Export) -> Result<()> {
        let (shown, hidden) = (self.import(SHOWN)?, self.import(HIDDEN)?);
        let write = self.transfer(Opcode::Write, local, &shown);
        let read = self.transfer(Opcode::Read, local, &hidden);
        let denied = Status::AccessDenied;
        self.refused("a write to a read-only segment", End::There, denied, write)?;
        self.refused("a read from a write-only segment", End::There, denied, read)
    }

    /// The local segment is exported anew: its key of before is stale.
    fn stale_here(&mut self, open: &uapi::Import) -> Result<()> {
        let old = self.export_again()?;
        for opcode in [Opcode::Write, Opcode::Read] {
            let stale = self.transfer(opcode, &old, open);
            let what = format!("{opcode:?} with a stale key here");
            self.refused(&what, End::Here, Status::BadKey, stale)?;
        }
        Ok(())
    }

    /// A segment that was revoked, and whose index another one has now.
    fn export_again(&self) -> Result<uapi::Export> {
        let second = self.export(2)?;
        let mut call = uapi::Unexport {
            segment: second.segment,
            ..Default::default()
        };
        self.raw.process.unexport(&mut call)?;
        let third = self.export(3)?;
        ensure!(
            third.segment == second.segment,
            "the index of a revoked segment was not used again"
        );
        Ok(second)
    }

    /// The owner exports its segment anew: the key of before is stale.
    fn stale_there(&mut self, old: &uapi::Import) -> Result<()> {
        let local = self.export(4)?;
        self.notify(old, RENEW)?;
        let start = Instant::now();
        let new = loop {
            let new = self.import(OPEN)?;
            if new.key != old.key {
                break new;
            }
            ensure!(
                start.elapsed() <= ANSWER_LIMIT,
                "the owner does not export its segment anew"
            );
        };
        for opcode in [Opcode::Write, Opcode::Read] {
            let mut stale = self.transfer(opcode, &local, &new);
            stale.remote.memory.key = Key(old.key.get());
            let what = format!("{opcode:?} with a stale key there");
            self.refused(&what, End::There, Status::BadKey, stale)?;
        }
        self.notify(&new, END)
    }

    fn notify(&mut self, to: &uapi::Import, id: NotificationId) -> Result<()> {
        let command = Command::inline_write(self.remote(to), 0);
        let command = command.notify(id.number()).publish();
        self.done("a notification", &command)
    }
}
