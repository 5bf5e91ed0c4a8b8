//! Names of processes (Q14): pairs (application, process) that every NIC knows. docs/names.md
//! has the protocol as a whole.
//!
//! ```text
//!   process                its NIC                                       every other NIC
//!   Register ────────────► own names ── log ── spread ──Names──────────► names of that node
//!   Withdraw, or its end ──►  │                  ▲                          │
//!                             ▼                  │ a session begins:        ▼
//!   LookUp ──────────────► known? ◄── waits      │ all from the start     LookUp of a process
//! ```
//! | module | holds |
//! |---|---|
//! | `own` | names of processes of this node, and the log of their changes |
//! | `known` | names of all nodes |
//! | `waits` | lookups that wait for a name, registrations that wait until it is free |
//! | `spread` | how far each other node has been told |
//!
//! # Invariants
//! - A node is told all changes of names in their order, from the beginning of each session on, and
//!   forgets them with the session. So names converge whenever nodes can talk: after losses, restarts
//!   and partitions.
//! - While this node has names of its own, or knows names of another node, it expects frames of that
//!   node: silence ends the session.
//! - Each command has one completion.
//! - No poll deals with more than [`BATCH`] commands that wait, and no frame with more names that have ended
//!   than twice its own, whatever waits.

mod known;
mod own;
mod spread;
mod waits;

use std::collections::BTreeMap;

use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::process_names::{
    kind, NameAction, NameCommand, NameEntry, Names, NamesSeen, Opcode, ProcessName,
    APPLICATION_BYTES, MAX_TIMEOUT_MS, NAMES_FIRST, NAME_WITHDRAWN,
};
use qnic_abi::wire::{Empty, Frame};
use qnic_abi::{NodeId, Port, Status, VniId};
use zerocopy::FromBytes;

use super::protocol::{Context, Ended, Outgoing, Protocol, Received, Said, Turn};
use crate::budget::Budget;
use crate::config::Limits;
use crate::core::{Fetched, Subject};
use crate::env::{Host, Time};
use crate::frame::Arrival;
use crate::ids::PeerIndex;
use crate::stages::Kind;
use crate::table::Table;
use crate::trace::{Scope, What};
use known::Known;
use own::OwnNames;
use spread::Spread;
use waits::{Awaited, Call, Wait, Waits};

/// Commands that wait, and names of nodes that are gone, that one poll deals with.
const BATCH: usize = 64;

/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// A name, in an order.
type Name = ([u8; APPLICATION_BYTES], u32);

/// A process: node and port.
type Place = (u16, u16);

/// State of the protocol.
#[derive(Debug, Default)]
pub(super) struct ProcessNames {
    own: OwnNames,
    known: Known,
    waits: Waits,
    spread: Spread,
    /// Commands that were read; their number names one in a trace.
    commands: u64,
}

/// A name for people: the process chooses its letters, and none of them is to control a terminal.
fn shown((application, process): Name) -> String {
    let name = ProcessName {
        application,
        ..ProcessName::default()
    };
    let letters = name.application().chars();
    let letters = letters.map(|letter| if letter.is_control() { '?' } else { letter });
    format!("{} {process}", letters.collect::<String>())
}

fn key(name: &ProcessName) -> Name {
    (name.application, name.process.get())
}

impl ProcessNames {
    /// Does what a command says that registers a name, or lets it wait until the name is free.
    fn register<H: Host>(&mut self, cx: &mut Context<'_, H>, wait: Wait) {
        let call = wait.call;
        let (status, place) = match self.take(cx, call.vni, wait.name) {
            Err((Status::NameTaken, place)) if wait.deadline > cx.now => {
                if self.has_room(cx, call.vni) {
                    return self.waits.push(wait);
                }
                (Status::Exhausted, place)
            }
            taken => taken.err().unwrap_or((Status::Ok, (0, 0))),
        };
        complete(cx, call, status, place);
        let mut others = || match status {
            Status::Ok => self.waits.pop_registration(call.vni, &wait.name),
            _ => None,
        };
        while let Some(other) = others() {
            complete(cx, other.call, status, place);
        }
    }

    /// Returns true if another command of a process may wait.
    fn has_room<H: Host>(&self, cx: &Context<'_, H>, vni: VniId) -> bool {
        self.waits.of_process(vni) < cx.core.limits.lookups as usize
    }

    /// Gives a process a name. Returns an error with the process that has it, if that is another.
    fn take<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        name: Name,
    ) -> Result<(), (Status, Place)> {
        let node = cx.core.geometry.node.0;
        let port = cx.core.process(vni).map_or(0, |process| process.port.0);
        let limits = &cx.core.limits;
        // It keeps a name that a process of another node has got at the same time.
        if self.own.owner(&name) == Some(vni) {
            return Ok(());
        }
        if let Some(place) = self.known.find(&name) {
            return Err((Status::NameTaken, place));
        }
        let full = self.own.of_process(vni) >= limits.names_of_process as usize
            || self.own.len() >= limits.names as usize;
        if full {
            return Err((Status::Exhausted, (node, port)));
        }
        self.own.register(name, vni, Port(port));
        self.known.insert(node, name, port);
        self.waits.changed(name);
        self.tell_all(cx);
        Ok(())
    }

    /// Takes a name of a process back.
    fn withdraw<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        name: Name,
    ) -> Result<(), (Status, Place)> {
        if self.own.owner(&name) != Some(vni) {
            return Err((Status::NameNotFound, (0, 0)));
        }
        self.give_back(cx, name);
        self.tell_all(cx);
        Ok(())
    }

    /// A process of this node has a name no more.
    fn give_back<H: Host>(&mut self, cx: &Context<'_, H>, name: Name) {
        self.own.withdraw(name);
        self.known.remove(cx.core.geometry.node.0, &name);
        self.waits.changed(name);
    }

    /// Finds the process of a name, or waits for it.
    fn look_up<H: Host>(&mut self, cx: &mut Context<'_, H>, wait: Wait) {
        if let Some(place) = self.known.find(&wait.name) {
            return complete(cx, wait.call, Status::Ok, place);
        }
        let status = match (wait.deadline > cx.now, self.has_room(cx, wait.call.vni)) {
            (false, _) => Status::NameNotFound,
            (true, false) => Status::Exhausted,
            (true, true) => return self.waits.push(wait),
        };
        complete(cx, wait.call, status, (0, 0));
    }

    /// Commands of a process that wait end with it.
    fn forget_waits<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        for call in self.waits.forget(vni) {
            let subject = call.subject(cx.core.geometry.node.0);
            cx.trace_ended(vni, subject, Status::Aborted);
        }
    }

    /// All names that are known, with the node and port of each.
    pub(super) fn table(&self) -> Table {
        let rows = self.known.all().map(|((application, process), place)| {
            let name = ProcessName {
                application,
                process: process.into(),
                ..ProcessName::default()
            };
            vec![
                name.application().to_owned(),
                process.to_string(),
                place.0.to_string(),
                place.1.to_string(),
            ]
        });
        Table::new(&["application", "process", "node", "port"], rows)
    }

    /// The first name of each process of this node that has any.
    pub(super) fn first_names(&self) -> BTreeMap<VniId, String> {
        let first = self.own.first_names();
        let shown = first.map(|(vni, name)| (vni, shown(name)));
        shown.collect()
    }

    /// Other nodes have to be told something.
    fn tell_all<H: Host>(&mut self, cx: &mut Context<'_, H>) {
        let own = cx.core.geometry.node;
        let others = cx.core.nodes.iter().filter(|node| **node != own);
        self.spread.wake(others.copied());
        self.schedule(cx);
    }

    /// Gives the NIC a turn if there is something to send.
    fn schedule<H: Host>(&self, cx: &mut Context<'_, H>) {
        if self.spread.has_turn() {
            cx.core.schedule_nic(Self::ID);
        }
    }

    /// A node says what has changed.
    fn receive_names<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: Names = arrival.body();
        let node = cx.transport.node_of(arrival.peer).0;
        if cx.transport.is_own(arrival.peer) {
            return;
        }
        if body.flags.get() & NAMES_FIRST != 0 {
            self.known.forget(node);
        }
        let known_before = self.known.count(node);
        let most = most_of_node(&cx.core.limits) as usize;
        let mut bytes = vec![0; arrival.payload.len()];
        let whole = arrival.payload.read(&mut bytes).is_ok();
        let entries = <[NameEntry]>::ref_from_bytes(&bytes).ok().filter(|_| whole);
        for entry in entries.into_iter().flatten() {
            // A node that lies about names spoils its own.
            if !entry.is_valid() {
                continue;
            }
            let name = key(&entry.name());
            if entry.flags.get() & NAME_WITHDRAWN != 0 {
                self.known.remove(node, &name);
                self.waits.changed(name);
            } else if self.known.has(node, &name) || self.known.count(node) < most {
                self.known.insert(node, name, entry.port.get());
                self.waits.changed(name);
            }
            self.known.sweep(2, |name| self.waits.changed(name));
        }
        // While none of its names was known, its silence did not matter.
        if known_before == 0 && self.known.count(node) > 0 {
            cx.transport
                .send_control(arrival.peer, Frame::new::<NamesSeen>(&Empty));
        }
    }

    /// What a node was told, and has told, counts no more.
    fn session_ended<H: Host>(&mut self, cx: &mut Context<'_, H>, node: NodeId, again: Time) {
        self.known.forget(node.0);
        let next = again.max(cx.now.after(spread::RETRY));
        self.spread.session_ended(node, next, self.own.newest());
    }
}

impl Call {
    /// For a trace.
    fn subject(self, node: u16) -> Subject {
        Subject::always(Scope::Name, node, self.number)
    }
}

/// Stores a completion.
fn complete<H: Host>(cx: &mut Context<'_, H>, call: Call, status: Status, (node, port): Place) {
    let subject = call.subject(cx.core.geometry.node.0);
    cx.trace_ended(call.vni, subject, status);
    let entry = CompletionEntry {
        handle: call.handle.into(),
        kind: CompletionKind::Name as u8,
        status: status.code().into(),
        node: node.into(),
        port: port.into(),
        ..CompletionEntry::default()
    };
    cx.core.complete(cx.host, call.vni, entry);
    cx.core.activate(call.vni, Some(cx.now));
}

/// How many names of one node are known: those that it has, and as many that it has withdrawn, but
/// says so later.
fn most_of_node(limits: &Limits) -> u32 {
    limits.names.saturating_mul(2)
}

/// Checks the form of a command.
fn check(command: &NameCommand) -> Result<NameAction, Status> {
    let action = NameAction::try_from(command.action).map_err(|_| Status::Malformed)?;
    let timeout = command.timeout_ms.get();
    let waits = action != NameAction::Withdraw || timeout == 0;
    let reserved = command.reserved1.iter().all(|word| word.get() == 0);
    let right = command.name.is_valid()
        && timeout <= MAX_TIMEOUT_MS
        && waits
        && reserved
        && command.reserved0 == [0; 3];
    right.then_some(action).ok_or(Status::Malformed)
}

impl Protocol for ProcessNames {
    const OPERATIONS: Kind = Kind::Names;
    const OPCODES: &'static [u8] = &[Opcode::Name as u8];
    const KINDS: &'static [u8] = &[kind::NAMES, kind::NAMES_SEEN];
    const IN_ORDER: &'static [u8] = &[kind::NAMES];

    fn is_well_formed(frame: &Frame) -> bool {
        match frame.envelope.kind {
            kind::NAMES => {
                let length = usize::from(frame.envelope.payload_length.get());
                frame.is::<Names>() && length % size_of::<NameEntry>() == 0
            }
            _ => frame.is::<NamesSeen>(),
        }
    }

    /// A frame says names of its node to one other; which frame it is, its number says.
    fn subject(frame: &Frame, from: u16, to: u16) -> Subject {
        let number = u64::from(to) << 48 ^ frame.envelope.sequence.get();
        Subject::always(Scope::Spread, from, number)
    }

    #[inline(never)] // It would cost transfers registers.
    fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        let command: NameCommand = fetched.descriptor.read();
        let action = check(&command)?;
        let (name, handle) = (key(&command.name), command.handle.get());
        self.commands += 1;
        let call = Call {
            vni,
            handle,
            number: self.commands,
        };
        let said = Said {
            code: Opcode::Name as u32,
            detail: action as u64,
            ..Said::default()
        };
        let subject = call.subject(cx.core.geometry.node.0);
        cx.trace(vni, What::Fetched, subject, said);
        let time = u64::from(command.timeout_ms.get()) * MILLISECOND;
        let wait = |awaited| Wait {
            call,
            name,
            awaited,
            deadline: cx.now.after(time),
        };
        match action {
            NameAction::Register => self.register(cx, wait(Awaited::Free)),
            NameAction::LookUp => self.look_up(cx, wait(Awaited::Taken)),
            NameAction::Withdraw => {
                let done = self.withdraw(cx, vni, name);
                let (status, place) = done.err().unwrap_or((Status::Ok, (0, 0)));
                complete(cx, call, status, place);
            }
        }
        Ok(())
    }

    fn nic_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        _budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        self.spread.turn(cx.now, cx.transport, &self.own, outgoing)
    }

    fn unblocked<H: Host>(&mut self, cx: &mut Context<'_, H>, peer: PeerIndex) {
        self.spread.resume(cx.transport.node_of(peer));
        self.schedule(cx);
    }

    #[inline(never)] // It would cost transfers registers.
    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        if arrival.frame.envelope.kind == kind::NAMES {
            self.receive_names(cx, arrival);
        }
        Received::Done
    }

    fn ended<H: Host>(&mut self, cx: &mut Context<'_, H>, ended: Ended) {
        match ended {
            Ended::Operations(vni) => self.forget_waits(cx, vni),
            Ended::Process(vni) => {
                self.forget_waits(cx, vni);
                let names = self.own.names_of(vni);
                for name in &names {
                    self.give_back(cx, *name);
                }
                if !names.is_empty() {
                    self.tell_all(cx);
                }
            }
            Ended::Session(_, node, again)
            | Ended::Left(_, node, again)
            | Ended::Unreached(_, node, again) => {
                self.session_ended(cx, node, again);
            }
            Ended::Segment(..) | Ended::PeerProcess(..) => {}
        }
    }

    fn peers_added<H: Host>(&mut self, cx: &mut Context<'_, H>, _some: bool) {
        self.spread.peers_added(cx.transport);
        self.schedule(cx);
    }

    fn awaits(&self, node: NodeId) -> bool {
        self.known.count(node.0) > 0 || self.spread.has_told(node) && !self.own.is_empty()
    }

    fn expire<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        if self.deadline().is_none_or(|deadline| deadline > cx.now) {
            return false;
        }
        let mut busy = self.known.sweep(BATCH, |name| self.waits.changed(name));
        for _ in 0..BATCH {
            let ready = self.waits.pop_changed(|name| self.known.find(name));
            let Some((wait, found)) = ready else {
                break;
            };
            busy = true;
            match found {
                Some(place) => complete(cx, wait.call, Status::Ok, place),
                None => self.register(cx, wait),
            }
        }
        for _ in 0..BATCH {
            let Some(wait) = self.waits.pop_expired(cx.now) else {
                break;
            };
            busy = true;
            match wait.awaited {
                Awaited::Taken => complete(cx, wait.call, Status::NameNotFound, (0, 0)),
                Awaited::Free => self.register(cx, wait),
            }
        }
        if self.spread.expire(cx.now) {
            busy = true;
            self.schedule(cx);
        }
        busy
    }

    /// Each poll asks.
    #[inline]
    fn deadline(&self) -> Option<Time> {
        if self.waits.has_changed() || self.known.is_sweeping() {
            return Some(Time(0));
        }
        let times = [self.waits.deadline(), self.spread.deadline()];
        times.into_iter().flatten().min()
    }

    fn budgets(&self, limits: &Limits, budgets: &mut Vec<Budget>) {
        let own = self.own.counts();
        budgets.extend([
            Budget::most("names_of_process", own, limits.names_of_process),
            Budget::most("names_of_node", self.known.counts(), most_of_node(limits)),
            Budget::most("lookups_of_process", self.waits.counts(), limits.lookups),
        ]);
    }
}
