//! Fences of one side: telling a process when sources of its writes may be reused, delivered or not
//! (N9).
//!
//! ```text
//!   lane:   W1 ─ W2 ─ F1 ─ W3 ─ F2        F1 waits for W1 and W2, F2 for all three, as far as
//!           └────┴─────────┴── source     their sources are to be read when it comes
//!                              read: each fence from the first that waits for it has one less
//! ```
//! A source is read when all of its write was sent: a frame is with its wire then, or its bytes are with
//! the transport. Where a wire keeps frames in the memory of the process ([`crate::Sent::Kept`]), it is
//! read when the write has ended. A write that is given up reads no more.
//!
//! # Invariants
//! - A fence counts each write for which it waits once; that write knows the first fence that counts
//!   it, and all later ones of its lane count it, too.
//! - Without fences a write pays for a look at an empty list. A fence pays for a look at each operation
//!   of its process, and is the last command of it in its poll (P15); a write pays for a look at each
//!   fence that waits.
//! - At most [`FENCES`] wait for one process; they go with its queue.

use std::collections::VecDeque;

use qnic_abi::command::Descriptor;
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::rdma::{FenceCommand, Opcode};
use qnic_abi::{Status, VniId};

use super::{Context, Protocol, Rdma, Transfers};
use crate::env::Host;
use crate::ids::OperationId;

/// Most fences of a process that wait.
const FENCES: usize = 1024;

/// A fence that waits.
#[derive(Debug)]
struct Fence {
    /// In the order of issue, from 0.
    number: u64,
    handle: u64,
    lane: u8,
    /// Writes whose sources are to be read.
    awaits: u32,
}

/// The fences of a process that wait, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Fences {
    waiting: VecDeque<Fence>,
    next: u64,
}

impl Fences {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Transfers {
    /// Counts the writes of a lane for which a fence of that number waits.
    fn await_sources<H: Host>(
        &mut self,
        cx: &Context<'_, H>,
        (vni, lane): (VniId, u8),
        number: u64,
    ) -> u32 {
        let kept = cx.core.has_kept();
        let running = cx
            .core
            .process(vni)
            .map(|process| process.operations.running());
        let own = running.into_iter().flatten();
        let own = own.filter(|it| it.protocol == Rdma::ID && it.lane == lane);
        let mut awaits = 0;
        for id in own.map(|operation| operation.id) {
            let transfer = &mut self[id];
            if transfer.awaited.is_some() || transfer.needs_source(kept) {
                transfer.awaited.get_or_insert(number);
                awaits += 1;
            }
        }
        awaits
    }

    /// The source of a write is read no more.
    #[cold]
    pub(super) fn source_read<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let lane = cx.core.operation(id).map(|operation| operation.lane);
        let Some((from, lane)) = self[id].awaited.take().zip(lane) else {
            return;
        };
        self.fences.waiting.retain_mut(|fence| {
            if fence.number < from || fence.lane != lane {
                return true;
            }
            fence.awaits -= 1;
            if fence.awaits == 0 {
                tell(cx, id.vni(), fence.handle, Status::Ok);
            }
            fence.awaits > 0
        });
    }
}

impl Rdma {
    /// Begins a fence, or returns `otherwise` for what is none.
    #[cold]
    pub(super) fn fence<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        descriptor: &Descriptor,
        otherwise: Status,
    ) -> Result<(), Status> {
        if descriptor.header.opcode != Opcode::Fence as u8 {
            return Err(otherwise);
        }
        let command: FenceCommand = descriptor.read();
        let reserved = command.reserved.iter().any(|word| word.get() != 0);
        let handle = command.handle.get();
        if reserved || handle == 0 || command.header.inline_length != 0 {
            return Err(Status::Malformed);
        }
        let lane = command.header.lane;
        let transfers = self.processes.get_or_insert(vni);
        if transfers.fences.waiting.len() >= FENCES {
            tell(cx, vni, handle, Status::Exhausted);
            return Ok(());
        }
        let number = transfers.fences.next;
        transfers.fences.next += 1;
        cx.core.was_long = true;
        match transfers.await_sources(cx, (vni, lane), number) {
            0 => tell(cx, vni, handle, Status::Ok),
            awaits => transfers.fences.waiting.push_back(Fence {
                number,
                handle,
                lane,
                awaits,
            }),
        }
        Ok(())
    }
}

fn tell<H: Host>(cx: &mut Context<'_, H>, vni: VniId, handle: u64, status: Status) {
    let entry = CompletionEntry {
        handle: handle.into(),
        status: status.code().into(),
        kind: CompletionKind::Transfer as u8,
        ..CompletionEntry::default()
    };
    cx.core.complete(cx.host, vni, entry);
}
